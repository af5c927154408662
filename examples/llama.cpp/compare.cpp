// compare MODEL [options]: what a model says, as JSON lines that can be compared with those of another model.
//
//   --prompt FILE     a prompt on each line. Each begins anew, unless --chat
//   --tokens N        tokens that are generated for each (default 32), always the most likely one
//   --template        prompts are put into the model's chat template
//   --chat            prompts are turns of one conversation
//   --evaluate N      generates nothing: the prompt itself, N tokens at a time
//   --draft N         speculative decoding: up to N tokens are guessed from n-grams of the text so far
//   --seen FILE       what an earlier run printed: its n-grams count as seen
//   --lora FILE       an add-on; --lora-off loads it and does not use it
//   --save FILE       the state of the conversation before the last prompt; --restore FILE begins there
//   --logits FILE     all logits, as fp32, in the order of tokens
//   --threads N       default 1
//   --rows            instead of all this: multiplies the first row of each tensor of our types with vec_dot and with
//                     what to_float makes of it; a line with the number of tensors and the largest relative difference
//
// A line for each prompt: its answer's tokens and text, `leads` (of each token's logit over the next best one's,
// relative to it), `logits` (a hash of all their bits), seconds, and how many tokens were drafted and accepted.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-cpu.h"
#include "ggml-pn.h"
#include "gguf.h"
#include "llama.h"
#include "ngram-cache.h"

namespace {

using Tokens = std::vector<llama_token>;

struct Options {
  std::string model, prompts, seen, lora, save, restore, logits;
  int tokens = 32, evaluate = 0, draft = 0, threads = 1;
  bool use_template = false, chat = false, lora_off = false, rows = false;
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

Options options_of(int count, char** arguments) {
  Options o;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const auto value = [&]() -> std::string {
      if (++i == count) fail(name + ": a value is missing");
      return arguments[i];
    };
    const auto number = [&] { return std::stoi(value()); };
    if (name == "--prompt")
      o.prompts = value();
    else if (name == "--tokens")
      o.tokens = number();
    else if (name == "--template")
      o.use_template = true;
    else if (name == "--chat")
      o.chat = true;
    else if (name == "--evaluate")
      o.evaluate = number();
    else if (name == "--draft")
      o.draft = number();
    else if (name == "--seen")
      o.seen = value();
    else if (name == "--lora")
      o.lora = value();
    else if (name == "--lora-off")
      o.lora_off = true;
    else if (name == "--save")
      o.save = value();
    else if (name == "--restore")
      o.restore = value();
    else if (name == "--logits")
      o.logits = value();
    else if (name == "--rows")
      o.rows = true;
    else if (name == "--threads")
      o.threads = number();
    else if (o.model.empty() && name[0] != '-')
      o.model = name;
    else
      fail(name + ": not an option of compare");
  }
  if (o.model.empty() || (o.prompts.empty() && !o.rows)) fail("usage: compare MODEL --prompt FILE [options]");
  return o;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(path + ": cannot be opened");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

// FNV-1a of bits.
struct Hash {
  std::uint64_t value = 14695981039346656037u;
  void add(const void* data, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i)
      value = (value ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  }
};

class Engine {
 public:
  explicit Engine(const Options& options) : options_(options) {
    model_.reset(llama_model_load_from_file(options.model.c_str(), llama_model_default_params()));
    if (!model_) fail(options.model + ": the engine does not load it");
    vocabulary_ = llama_model_get_vocab(model_.get());
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = 2048;
    parameters.n_batch = parameters.n_ubatch = 512;
    parameters.n_threads = parameters.n_threads_batch = options.threads;
    context_.reset(llama_init_from_model(model_.get(), parameters));
    if (!context_) fail(options.model + ": no context");
    if (!options.lora.empty()) {
      adapter_.reset(llama_adapter_lora_init(model_.get(), options.lora.c_str()));
      if (!adapter_) fail(options.lora + ": the engine does not load it");
      llama_adapter_lora* adapter = adapter_.get();
      float scale = 1;
      if (!options.lora_off && llama_set_adapters_lora(context_.get(), &adapter, 1, &scale) != 0)
        fail(options.lora + ": cannot be used");
    }
    if (!options.seen.empty()) {
      for (const std::string& line : lines_of(options.seen)) {
        Tokens tokens = nlohmann::json::parse(line).at("tokens");
        common_ngram_cache_update(seen_, 1, 4, tokens, static_cast<int>(tokens.size()), false);
      }
    }
    if (!options.logits.empty()) {
      logits_.open(options.logits, std::ios::binary);
      if (!logits_) fail(options.logits + ": cannot be written");
    }
  }

  void run() {
    const std::vector<std::string> prompts = lines_of(options_.prompts);
    if (!options_.restore.empty()) restore();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      if (!options_.chat) clear();
      if (!options_.save.empty() && i + 1 == prompts.size()) save();
      answer(prompts[i]);
    }
    if (!logits_.flush() && !options_.logits.empty()) fail(options_.logits + ": not written");
  }

 private:
  void answer(const std::string& prompt) {
    hash_ = {};
    leads_.clear();
    drafted_ = accepted_ = 0;
    const auto begin = std::chrono::steady_clock::now();
    Tokens input = tokens_of(options_.use_template ? in_template(prompt) : prompt);
    if (input.empty()) fail("a prompt without tokens");
    Tokens said = options_.evaluate > 0 ? evaluate(input) : generate(input);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(hash_.value));
    const nlohmann::json line = {{"tokens", said},       {"text", text_of(said)},      {"logits", hash},
                                 {"leads", leads_},      {"seconds", seconds.count()}, {"drafted", drafted_},
                                 {"accepted", accepted_}};
    std::printf("%s\n", line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
    std::fflush(stdout);
  }

  // The most likely token after each of the input's, which is taken `evaluate` at a time.
  Tokens evaluate(const Tokens& input) {
    Tokens said;
    const std::size_t step = static_cast<std::size_t>(options_.evaluate);
    for (std::size_t i = 0; i < input.size(); i += step) {
      const Tokens part(input.begin() + static_cast<std::ptrdiff_t>(i),
                        input.begin() + static_cast<std::ptrdiff_t>(std::min(i + step, input.size())));
      decode(part, true);
      for (std::size_t j = 0; j < part.size(); ++j) said.push_back(most_likely(static_cast<int>(j)));
    }
    return said;
  }

  Tokens generate(const Tokens& input) {
    decode(input, false);
    Tokens said;
    llama_token next = most_likely(-1);
    while (said.size() < static_cast<std::size_t>(options_.tokens)) {
      said.push_back(next);
      if (llama_vocab_is_eog(vocabulary_, next)) break;
      text_.push_back(next);
      const Tokens guess = draft();
      Tokens batch = {next};
      batch.insert(batch.end(), guess.begin(), guess.end());
      const llama_pos position = position_;
      decode(batch, true, false);
      // The model's own choice after each token; what was guessed counts as long as it is that.
      std::size_t right = 0;
      while (true) {
        next = most_likely(static_cast<int>(right));
        if (right == guess.size() || next != guess[right] ||
            said.size() + 1 >= static_cast<std::size_t>(options_.tokens) || llama_vocab_is_eog(vocabulary_, next))
          break;
        said.push_back(next);
        text_.push_back(next);
        ++right;
      }
      drafted_ += guess.size();
      accepted_ += right;
      position_ = position + 1 + static_cast<llama_pos>(right);
      if (right < guess.size() && !llama_memory_seq_rm(llama_get_memory(context_.get()), 0, position_, -1))
        fail("the engine cannot take back a guess");
    }
    return said;
  }

  // The engine's look-up: n-grams of the text so far.
  Tokens draft() {
    if (options_.draft == 0) return {};
    Tokens text = text_;
    common_ngram_cache seen = seen_, none, nothing;
    common_ngram_cache_update(seen, 1, 4, text, static_cast<int>(text.size()), false);
    Tokens guess = {text.back()};
    common_ngram_cache_draft(text, guess, options_.draft, 1, 4, seen, none, nothing);
    guess.erase(guess.begin());
    return guess;
  }

  // Appends tokens to the sequence. Logits of all of them, or of the last.
  void decode(const Tokens& tokens, bool all, bool is_text = true) {
    for (std::size_t first = 0; first < tokens.size(); first += 512) {
      const std::size_t count = std::min<std::size_t>(512, tokens.size() - first);
      llama_batch batch = llama_batch_init(static_cast<int>(count), 0, 1);
      batch.n_tokens = static_cast<int>(count);
      for (std::size_t i = 0; i < count; ++i) {
        batch.token[i] = tokens[first + i];
        batch.pos[i] = position_++;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = all || first + i + 1 == tokens.size();
      }
      const int status = llama_decode(context_.get(), batch);
      llama_batch_free(batch);
      if (status != 0) fail("llama_decode: " + std::to_string(status));
    }
    if (is_text) text_.insert(text_.end(), tokens.begin(), tokens.end());
  }

  // Of the logits after token i of the last batch, which are also recorded.
  llama_token most_likely(int i) {
    const float* logits = llama_get_logits_ith(context_.get(), i);
    const int count = llama_vocab_n_tokens(vocabulary_);
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    hash_.add(logits, bytes);
    if (logits_.is_open()) logits_.write(reinterpret_cast<const char*>(logits), static_cast<std::streamsize>(bytes));
    const auto best = std::max_element(logits, logits + count);
    float second = -INFINITY;
    for (const float* logit = logits; logit != logits + count; ++logit) {
      if (logit != best) second = std::max(second, *logit);
    }
    leads_.push_back((*best - second) / std::fabs(*best));
    return static_cast<llama_token>(best - logits);
  }

  void clear() {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    position_ = 0;
    text_.clear();
  }

  void save() {
    if (!llama_state_save_file(context_.get(), options_.save.c_str(), text_.data(), text_.size()))
      fail(options_.save + ": the engine does not save it");
  }

  void restore() {
    text_.resize(2048);
    std::size_t count = 0;
    if (!llama_state_load_file(context_.get(), options_.restore.c_str(), text_.data(), text_.size(), &count))
      fail(options_.restore + ": the engine does not restore it");
    text_.resize(count);
    position_ = static_cast<llama_pos>(count);
  }

  std::string in_template(const std::string& prompt) const {
    const llama_chat_message message = {"user", prompt.c_str()};
    const char* chat_template = llama_model_chat_template(model_.get(), nullptr);
    std::string text(prompt.size() + 4096, '\0');
    const int length =
        llama_chat_apply_template(chat_template, &message, 1, true, text.data(), static_cast<int>(text.size()));
    if (length < 0 || static_cast<std::size_t>(length) > text.size()) fail("the model's chat template");
    text.resize(static_cast<std::size_t>(length));
    return text;
  }

  Tokens tokens_of(const std::string& text) const {
    Tokens tokens(text.size() + 8);
    const int count = llama_tokenize(vocabulary_, text.data(), static_cast<int>(text.size()), tokens.data(),
                                     static_cast<int>(tokens.size()), text_.empty(), true);
    if (count < 0) fail("llama_tokenize");
    tokens.resize(static_cast<std::size_t>(count));
    return tokens;
  }

  std::string text_of(const Tokens& tokens) const {
    std::string text;
    for (const llama_token token : tokens) {
      char piece[256];
      const int length = llama_token_to_piece(vocabulary_, token, piece, sizeof piece, 0, false);
      if (length > 0) text.append(piece, static_cast<std::size_t>(length));
    }
    return text;
  }

  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
    void operator()(llama_adapter_lora*) const {}  // goes with its model
  };

  const Options& options_;
  std::unique_ptr<llama_model, Free> model_;
  std::unique_ptr<llama_adapter_lora, Free> adapter_;
  std::unique_ptr<llama_context, Free> context_;
  const llama_vocab* vocabulary_ = nullptr;
  std::ofstream logits_;
  Hash hash_;
  std::vector<float> leads_;
  Tokens text_;  // of the sequence so far
  llama_pos position_ = 0;
  common_ngram_cache seen_;
  std::size_t drafted_ = 0, accepted_ = 0;
};

void compare_rows(const std::string& model) {
  ggml_context* data = nullptr;
  gguf_context* file = gguf_init_from_file(model.c_str(), {false, &data});
  if (file == nullptr) fail(model + ": the engine does not read it");
  int count = 0;
  double worst = 0;
  for (ggml_tensor* t = ggml_get_first_tensor(data); t != nullptr; t = ggml_get_next_tensor(data, t)) {
    if (!ggml_pn_is_type(t->type)) continue;
    std::vector<float> weights(static_cast<std::size_t>(t->ne[0]));
    std::vector<float> x(weights.size());
    ggml_get_type_traits(t->type)->to_float(t->data, weights.data(), t->ne[0]);
    double sum = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i * i % 1013) / 512 - 1;
      sum += static_cast<double>(weights[i]) * x[i];
      size += std::fabs(static_cast<double>(weights[i]) * x[i]);
    }
    float y = 0;
    ggml_get_type_traits_cpu(t->type)->vec_dot(static_cast<int>(t->ne[0]), &y, 0, t->data, 0, x.data(), 0, 1);
    worst = std::max(worst, std::fabs(y - sum) / size);
    ++count;
  }
  std::printf("{\"rows\": %d, \"difference\": %.3g}\n", count, worst);
  gguf_free(file);
  ggml_free(data);
}

void log(ggml_log_level level, const char* text, void*) {
  if (level >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const Options options = options_of(count, arguments);
    llama_log_set(log, nullptr);
    llama_backend_init();
    if (options.rows) {
      compare_rows(options.model);
    } else {
      Engine(options).run();
    }
    llama_backend_free();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "compare: %s\n", error.what());
    return 1;
  }
}
