// Takes a pool's memory from the system a little ahead of its use.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "attention/kv_cache.h"

namespace pellucid {

// The system hands out a page, and zeroes it, when it is first written to. In a virtual machine the host then has to find
// one as well: 128 tokens of a 135M model that come to lie in new memory took 7 ms longer than in old (of 27). So a thread
// touches the blocks that come next while the engine is idle, and never while it works: even a thread of idle priority
// holds a core for milliseconds once a barrier has yielded it. Blocks are given out in order of their numbers as long as
// there are new ones.
class PagesAhead {
  public:
    // The layers of one pool, of the same size. num_bytes: how far ahead, all layers together. The caches must outlive this.
    PagesAhead(std::vector<const KVCache*> caches, size_t num_bytes);
    ~PagesAhead();
    PagesAhead(const PagesAhead&) = delete;
    PagesAhead& operator=(const PagesAhead&) = delete;

    // The engine is at work, and blocks up to this one are in use. From any thread.
    void used(int64_t block);

    // There is memory for the first so many blocks.
    int64_t num_blocks_ready() const;

  private:
    void run();
    bool touch(int64_t begin, int64_t end, int64_t num_uses) const;  // false: interrupted

    const std::vector<const KVCache*> caches_;
    const int64_t num_blocks_, ahead_;  // in blocks
    mutable std::mutex mutex_;
    std::condition_variable wanted_more_;
    int64_t wanted_, ready_ = 0;
    std::chrono::steady_clock::time_point last_use_{};
    std::atomic<int64_t> num_uses_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace pellucid
