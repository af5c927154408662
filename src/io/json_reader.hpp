// Reading JSON that nobody vouches for: every value is looked at as it comes, nothing is built up, and each error knows
// its place. Derive from JsonEvents, override what is expected, and call parse_json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "error.hpp"

namespace pn::io {

class JsonEvents {
 public:
  // `file` and `what` ("its header") are for errors; offsets in them count from `origin` in the file, where the text
  // begins. Without `origin` (a text within a text) errors have no offset.
  JsonEvents(std::string file, std::string what, std::optional<std::uint64_t> origin)
      : file_(std::move(file)), what_(std::move(what)), origin_(origin) {}
  virtual ~JsonEvents() = default;

  // Events in the order of the text; start_ and end_ come in pairs.
  virtual void on_key(std::string&&) {}
  virtual void on_start_object() { unexpected("an object"); }
  virtual void on_end_object() {}
  virtual void on_start_array() { unexpected("an array"); }
  virtual void on_end_array() {}
  virtual void on_string(std::string&&) { unexpected("a string"); }
  virtual void on_number(std::uint64_t) { unexpected("a number"); }     // a non-negative integer
  virtual void on_other_number(const char* what) { unexpected(what); }  // negative, or no integer
  virtual void on_other(const char* what) { unexpected(what); }         // null, true, false

  // The SAX interface of the parser.
  bool null() { return on_other("null"), true; }
  bool boolean(bool value) { return on_other(value ? "true" : "false"), true; }
  bool number_integer(std::int64_t) { return on_other_number("a negative number"), true; }
  bool number_unsigned(std::uint64_t value) { return on_number(value), true; }
  bool number_float(double, const std::string&) { return on_other_number("a number that is no integer"), true; }
  bool string(std::string& value) { return on_string(std::move(value)), true; }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(std::size_t) { return on_start_object(), true; }
  bool key(std::string& value) { return on_key(std::move(value)), true; }
  bool end_object() { return on_end_object(), true; }
  bool start_array(std::size_t) { return on_start_array(), true; }
  bool end_array() { return on_end_array(), true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: what a person wants to know"
    std::string reason = error.what();
    const auto erase_through = [&](const char* mark, std::size_t length) {
      const std::size_t at = reason.find(mark);
      if (at != std::string::npos) reason.erase(0, at + length);
    };
    erase_through("] ", 2);
    if (reason.rfind("parse error", 0) == 0) erase_through(": ", 2);
    if (reason.size() > 200) reason.replace(200, std::string::npos, "...");
    subject_.clear();
    fail("is not valid JSON: " + reason);
  }

  [[noreturn]] void refuse_zero(std::ptrdiff_t at) {
    position = static_cast<std::size_t>(at);
    fail("is not valid JSON: it has a zero byte");
  }

  std::size_t position = 0;  // characters read so far: just behind the token of the current event, or one further

 protected:
  [[noreturn]] void fail(const std::string& message) const {
    if (!origin_) throw Error(Fault::input, file_, what_ + (subject_.empty() ? " " : ", " + subject_ + ": ") + message);
    const std::uint64_t at = *origin_ + position;
    if (subject_.empty()) throw Error(Fault::input, file_, what_ + " " + message).at(at);
    throw Error(Fault::input, file_, message).about(subject_).at(at);
  }
  [[noreturn]] void unexpected(const std::string& what) const {
    fail((subject_.empty() ? "has " : "there is ") + what + " where " + expected_ + " belongs");
  }

  void about(std::string subject) { subject_ = std::move(subject); }  // empty: the text as a whole
  const char* expected_ = "an object";

 private:
  std::string file_;
  std::string what_;
  std::optional<std::uint64_t> origin_;
  std::string subject_;
};

// A character of a text, which tells how far reading has come.
struct JsonCharacter {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char* begin;
  std::size_t* position;

  reference operator*() const { return *at; }
  JsonCharacter& operator++() {
    ++at;
    *position = static_cast<std::size_t>(at - begin);
    return *this;
  }
  bool operator!=(const JsonCharacter& other) const { return at != other.at; }
  bool operator==(const JsonCharacter& other) const { return at == other.at; }
};

// Parses the text, which must be one JSON value and nothing else but white space.
template <class Events>
void parse_json(const char* text, std::size_t length, Events& events) {
  // The parser takes a zero byte for the end of the text.
  if (const void* zero = std::memchr(text, 0, length); zero != nullptr)
    events.refuse_zero(static_cast<const char*>(zero) - text);
  const JsonCharacter first{text, text, &events.position};
  const JsonCharacter last{text + length, text, &events.position};
  nlohmann::json::sax_parse(first, last, &events);
}

// Appends a text, which is UTF-8, as a JSON string with its quotes.
inline void append_json_quoted(std::string& out, const std::string& text) {
  constexpr const char* digits = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += digits[c >> 4];
          out += digits[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

// Can a text stand in JSON, which has to be UTF-8?
inline bool is_json_text(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace pn::io
