// A second reader of JSON, strictly by RFC 8259: one value, and nothing around it but white space and a byte order mark
// before it. Names of a member may occur several times, as far as this reader is concerned.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "fuzz.hpp"

namespace fuzz {

struct Json {
  enum class Kind { word, number, string, array, object };
  Kind kind = Kind::word;
  std::string text;                // of a string, decoded; of a number or word, as it is written
  std::size_t begin = 0;           // of the value in the whole text
  std::vector<std::string> names;  // of an object's items
  std::vector<Json> items;

  // Of a number that is written as one.
  std::optional<std::uint64_t> integer() const {
    std::uint64_t value = 0;
    for (const char c : text)
      if (c < '0' || c > '9' || __builtin_mul_overflow(value, std::uint64_t{10}, &value) ||
          __builtin_add_overflow(value, static_cast<std::uint64_t>(c - '0'), &value))
        return std::nullopt;
    return kind == Kind::number ? std::optional<std::uint64_t>(value) : std::nullopt;
  }
};

class JsonOracle {
 public:
  static std::optional<Json> read(const std::string& text) {
    JsonOracle oracle(text);
    if (text.rfind("\xEF\xBB\xBF", 0) == 0) oracle.at_ = 3;
    Json value;
    if (!oracle.value(value)) return std::nullopt;
    oracle.space();
    return oracle.at_ == text.size() ? std::optional<Json>(std::move(value)) : std::nullopt;
  }

 private:
  explicit JsonOracle(const std::string& text) : text_(text) {}

  // The next character; 0 at the end, and 0 is allowed nowhere.
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take(const char* word) {
    if (text_.compare(at_, std::strlen(word), word) != 0) return false;
    at_ += std::strlen(word);
    return true;
  }
  void space() {
    while (take(' ') || take('\t') || take('\n') || take('\r')) {
    }
  }
  bool digits() {
    const std::size_t first = at_;
    while (next() >= '0' && next() <= '9') ++at_;
    return at_ != first;
  }

  bool value(Json& out) {
    space();
    out.begin = at_;
    switch (next()) {
      case '{': return object(out);
      case '[': return array(out);
      case '"': out.kind = Json::Kind::string; return string(out.text);
      case 't':
      case 'f':
      case 'n': {
        const bool good = take("true") || take("false") || take("null");
        out.text = text_.substr(out.begin, at_ - out.begin);
        return good;
      }
      default: return number(out);
    }
  }

  bool object(Json& out) {
    out.kind = Json::Kind::object;
    ++at_;
    space();
    if (take('}')) return true;
    do {
      space();
      out.names.emplace_back();
      out.items.emplace_back();
      if (!string(out.names.back())) return false;
      space();
      if (!take(':') || !value(out.items.back())) return false;
      space();
    } while (take(','));
    return take('}');
  }

  bool array(Json& out) {
    out.kind = Json::Kind::array;
    ++at_;
    space();
    if (take(']')) return true;
    do {
      out.items.emplace_back();
      if (!value(out.items.back())) return false;
      space();
    } while (take(','));
    return take(']');
  }

  // Numbers beyond double's range are refused, as by most readers.
  bool number(Json& out) {
    out.kind = Json::Kind::number;
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    out.text = text_.substr(out.begin, at_ - out.begin);
    return std::isfinite(std::strtod(out.text.c_str(), nullptr));
  }

  bool hexadecimal(std::uint32_t& code) {
    code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = next();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return false;
      code = code << 4 | static_cast<std::uint32_t>(digit);
      ++at_;
    }
    return true;
  }

  static void append_utf8(std::string& out, std::uint32_t code) {
    const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
      put(code);
      return;
    }
    if (code < 0x800) {
      put(0xC0 | code >> 6);
    } else if (code < 0x10000) {
      put(0xE0 | code >> 12);
      put(0x80 | (code >> 6 & 0x3F));
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
      put(0x80 | (code >> 6 & 0x3F));
    }
    put(0x80 | (code & 0x3F));
  }

  bool escape(std::string& out) {
    static constexpr const char* from = "\"\\/bfnrt";
    static constexpr const char* to = "\"\\/\b\f\n\r\t";
    if (take('u')) {
      std::uint32_t code = 0;
      if (!hexadecimal(code) || (code >= 0xDC00 && code <= 0xDFFF)) return false;
      if (code >= 0xD800 && code <= 0xDBFF) {
        std::uint32_t low = 0;
        if (!take("\\u") || !hexadecimal(low) || low < 0xDC00 || low > 0xDFFF) return false;
        code = 0x10000 + ((code & 0x3FF) << 10 | (low & 0x3FF));
      }
      append_utf8(out, code);
      return true;
    }
    for (std::size_t i = 0; from[i] != '\0'; ++i) {
      if (!take(from[i])) continue;
      out.push_back(to[i]);
      return true;
    }
    return false;
  }

  // One character of more than one byte, well-formed.
  bool wide(std::string& out) {
    const auto first = static_cast<unsigned char>(next());
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text_.size() - at_ < length) return false;
    std::uint32_t code = first & (0xFFu >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
      const auto byte = static_cast<unsigned char>(text_[at_ + i]);
      if ((byte & 0xC0) != 0x80) return false;
      code = code << 6 | (byte & 0x3Fu);
    }
    if (code < (length == 4 ? 0x10000u : length == 3 ? 0x800u : 0x80u) || code > 0x10FFFF) return false;
    if (code >= 0xD800 && code <= 0xDFFF) return false;
    out += text_.substr(at_, length);
    at_ += length;
    return true;
  }

  bool string(std::string& out) {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (take('"')) return true;
      if (take('\\')) {
        if (!escape(out)) return false;
      } else if (c >= 0x80) {
        if (!wide(out)) return false;
      } else if (c < 0x20) {
        return false;
      } else {
        out.push_back(text_[at_++]);
      }
    }
    return false;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace fuzz
