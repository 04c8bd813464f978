// SPDX-License-Identifier: BSD-3-Clause
// status.h - the status of an operation as a value that the caller must check; exceptions and structs at the C
// interface; errno values and numbers as text.
//
// Context  any, apart from guarded(); no lock.
#ifndef PINRAIL_BASE_CORE_STATUS_H
#define PINRAIL_BASE_CORE_STATUS_H

#include <cxxabi.h>
#include <pinrail/types.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <type_traits>

#include "base/core/compiler.h"

namespace pinrail {

// pinrail_status_t with [[nodiscard]].
class [[nodiscard]] Status {
 public:
  constexpr Status(pinrail_status_t code) : code_(code) {}
  constexpr pinrail_status_t code() const { return code_; }
  constexpr bool ok() const { return code_ == PINRAIL_SUCCESS; }
  constexpr bool is(pinrail_status_t code) const { return code_ == code; }
  constexpr bool is_lack() const { return is(PINRAIL_ERR_OUT_OF_RESOURCE) || is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE); }
  void ignore() const {}
  // Becomes the other status, unless it is an error already: the first error of several operations.
  void keep_first(Status other) {
    if (ok()) code_ = other.code_;
  }

 private:
  pinrail_status_t code_;
};

constexpr Status success() { return PINRAIL_SUCCESS; }

// Whether there is such a status (C5): a component or an embedder may return any number.
constexpr bool is_status(pinrail_status_t code) { return code <= PINRAIL_SUCCESS && code >= PINRAIL_ERR_VERSION; }

// "OUT_OF_RESOURCE" for PINRAIL_ERR_OUT_OF_RESOURCE, and so on; and a short explanation for a message.
const char* status_name(pinrail_status_t status);
const char* status_text(pinrail_status_t status);

// Keeps exceptions from crossing a C interface.
//
// A forced unwinding (pthread_exit, cancellation) is passed on: the runtime ends a process that catches one and does
// not throw it again.
//
// Context  start-up or API.
//
// Returns the status of body(), SUCCESS if it returns nothing, OUT_OF_RESOURCE if it throws bad_alloc, ERROR if it
// throws another exception.
template <typename Body>
PINRAIL_CATCHES_FORCED_UNWIND pinrail_status_t guarded(Body&& body) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
      return PINRAIL_SUCCESS;
    } else {
      return Status(body()).code();
    }
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::bad_alloc&) {
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  } catch (...) {
    return PINRAIL_ERR_ERROR;
  }
}

// Returns the answer of a function that is not this library's. What it throws and a status that does not exist become
// ERROR (C4, C5). With fault_out, which then says which of them or is NULL, bad_alloc becomes OUT_OF_RESOURCE.
template <typename Function>
Status answer_of_foreign(Function&& function, const char** fault_out = nullptr) {
  const char* fault = "it threw an exception";
  const Status answer = guarded([&]() -> Status {
    const Status returned = function();
    const bool exists = is_status(returned.code());
    fault = exists ? nullptr : "it returned a status that does not exist";
    return exists ? returned : PINRAIL_ERR_ERROR;
  });
  if (fault_out == nullptr) return fault == nullptr ? answer : PINRAIL_ERR_ERROR;
  *fault_out = fault;
  return answer;
}

// Sizes of structs that cross the C interface; each begins with its own (C1).

// Whether a struct of an older header, which has the first fields of Struct, may have this size. Other sizes end inside
// a field, half of which would be read or written. No field is longer than the alignment of its struct, but for texts
// and arrays, which their callers must check.
template <typename Struct>
constexpr bool ends_between_fields(size_t size) {
  return size >= sizeof(size_t) && size % alignof(Struct) == 0;
}

// A struct that begins with its size, and is empty otherwise.
template <typename Struct>
constexpr Struct sized() {
  return {sizeof(Struct)};
}

// Copies as much of a struct as to_out->size, which ends between fields, allows. It becomes the size of the copy.
template <typename Struct>
void copy_sized(const Struct& from, Struct* to_out) {
  const size_t size = to_out->size < sizeof(from) ? to_out->size : sizeof(from);
  std::memcpy(to_out, &from, size);
  to_out->size = size;
}

// An errno value as text for a message: "12, ENOMEM", or "12": musl, and glibc before 2.32, have no names of errors.
// Not in hooks.
class ErrnoText {
 public:
  explicit ErrnoText(int error) {
    const char* name = nullptr;
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 32)
    name = strerrorname_np(error);
#endif
    std::snprintf(text_, sizeof(text_), "%d%s%s", error, name == nullptr ? "" : ", ", name == nullptr ? "" : name);
  }
  const char* c_str() const { return text_; }

 private:
  char text_[40];
};

// A number as text, for a help message.
class NumberText {
 public:
  explicit NumberText(size_t number) { std::snprintf(text_, sizeof(text_), "%zu", number); }
  const char* c_str() const { return text_; }

 private:
  char text_[24];
};

}  // namespace pinrail

#endif
