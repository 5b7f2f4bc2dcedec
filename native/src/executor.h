// Threads, instruction set and scratch memory: what every kernel call needs beside its arguments.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "isa.h"
#include "memory.h"
#include "thread_pool.h"

namespace pellucid {

class Executor {
  public:
    Executor(Isa isa, int num_threads) : isa(isa), pool(num_threads), scratch_(pool.num_threads()) {}

    const Isa isa;
    ThreadPool pool;
    std::mutex mutex;  // held for the length of a call: the memory below serves one call at a time

    // Memory of each thread, of at least num_bytes after this call.
    void reserve_scratch(size_t num_bytes) {
        for (Buffer& buffer : scratch_) buffer.reserve(num_bytes);
    }
    std::byte* scratch(int thread) const { return scratch_[thread].data(); }

    Buffer shared;  // of one call: prepared rows, partial results

  private:
    std::vector<Buffer> scratch_;
};

}  // namespace pellucid
