// Drives a JSON FFI engine from C++: only strings, integers and functions cross the border.
// int drive(model, text) returns 0, or the number of the first check that failed.

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

namespace ffi = tvm::ffi;

namespace {

// All that the callback was given, and a way to wait for a part of it.
class Heard {
 public:
  void Put(const std::string& text) {
    std::lock_guard<std::mutex> guard(lock_);
    text_ += text;
    changed_.notify_all();
  }

  bool WaitFor(const std::string& part) {
    std::unique_lock<std::mutex> guard(lock_);
    return changed_.wait_for(guard, std::chrono::seconds(100),
                             [&] { return text_.find(part) != std::string::npos; });
  }

  std::string Take() {
    std::lock_guard<std::mutex> guard(lock_);
    std::string taken;
    taken.swap(text_);
    return taken;
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  std::string text_;
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int Drive(const std::string& model, const std::string& text) {
  ffi::Function create = ffi::Function::GetGlobalRequired("mlc.json_ffi.CreateJSONFFIEngine");
  auto table = create().cast<ffi::Map<ffi::String, ffi::Function>>();
  Heard heard;
  ffi::Function callback =
      ffi::Function::FromTyped([&heard](ffi::String chunks) { heard.Put(std::string(chunks)); });
  table["init_background_engine"](1, 0, callback);
  std::thread engine([&] { table["run_background_loop"](); });
  std::thread stream_back([&] { table["run_background_stream_back_loop"](); });

  auto check = [&]() -> int {
    bool failed = false;
    try {
      table["reload"](std::string("{\"model\": \"/no/such/model.gguf\"}"));
    } catch (const ffi::Error& error) {
      failed = Has(error.what(), "/no/such/model.gguf");
    }
    if (!failed) return 1;
    table["reload"]("{\"model\": " + model + "}");

    std::string chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"" + text +
                       "\"}], \"temperature\": 0, \"max_tokens\": 8}";
    if (!table["chat_completion"](chat, "chat").cast<bool>()) return 2;
    if (!heard.WaitFor("\"usage\"")) return 3;
    std::string answer = heard.Take();
    if (!Has(answer, "\"finish_reason\": \"length\"") || !Has(answer, "\"content\": \"")) return 4;

    if (table["chat_completion"]("malformed_string", "wrong").cast<bool>()) return 5;
    if (!Has(heard.Take(), "\"finish_reason\": \"error\"")) return 6;
    if (!Has(std::string(table["get_last_error"]().cast<ffi::String>()), "JSON")) return 7;

    std::string more(1000, 'x');
    std::string story = "{\"messages\": [{\"role\": \"user\", \"content\": \"" + more +
                        "\"}], \"debug_config\": {\"ignore_eos\": true}}";
    if (!table["chat_completion"](story, "story").cast<bool>()) return 8;
    if (!heard.WaitFor("\"content\": \"")) return 9;
    if (!table["abort"]("story").cast<bool>()) return 10;
    if (!heard.WaitFor("\"usage\"")) return 11;
    if (!Has(heard.Take(), "\"finish_reason\": \"abort\"")) return 12;

    table["reset"]();
    table["unload"]();
    if (table["chat_completion"](chat, "late").cast<bool>()) return 13;
    return Has(heard.Take(), "no engine is loaded") ? 0 : 14;
  };

  int failed = check();
  table["exit_background_loop"]();
  engine.join();
  stream_back.join();
  return failed;
}

}  // namespace

extern "C" int drive(const char* model, const char* text) {
  try {
    return Drive(model, text);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}
