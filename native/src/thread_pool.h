// One pool of pinned threads, one a physical core, that stays warm between kernels.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pellucid {

// The first hardware thread of each physical core this process may run on, no more than its cgroup's CPU quota allows.
std::vector<int> physical_cores();

// A job is run by all threads at once, the caller being thread 0; inside it they meet at barriers. A barrier costs well
// under a microsecond because waiting threads spin. Between jobs the workers spin for a moment (the next kernel of an
// eager step arrives within microseconds), then sleep, so an idle engine burns no CPU.
//
// One job at a time: run() from two threads is serialised. A job must not call run().
class ThreadPool {
  public:
    // num_threads 0: as many as there are physical_cores(). More threads than cores are allowed but not pinned.
    explicit ThreadPool(int num_threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return num_threads_; }

    // Handed to a job: who I am, and how I meet the others.
    class Team {
      public:
        const int thread;
        const int num_threads;

        // A team of one, for a thread that does a share of a job on its own: barriers and sharing cost nothing.
        static Team solo() { return Team(nullptr, 0, 1); }

        // Waits for all threads of the job; what they wrote before is visible after.
        void barrier() const {
            if (pool_ != nullptr) pool_->barrier();
        }

        // body(i) for i in [0, count), each once, by whichever thread is free: a thread begins with the item of its own
        // number, and the rest is left to chance: the result must not depend on it. No barrier at the end.
        template <typename Body>
        void for_each(int64_t count, Body&& body) const {
            for_each_ahead(count, [&](int64_t i, int64_t) { body(i); });
        }

        // The same with body(i, what this thread will run after i; count or more: nothing).
        template <typename Body>
        void for_each_ahead(int64_t count, Body&& body) const {
            for (int64_t i = thread; i < count;) {
                const int64_t after = num_threads == 1 ? i + 1 : next();
                body(i, after);
                i = after;
            }
        }

      private:
        // The next number of a sequence shared by the team. Every thread must leave its loop before the barrier, which
        // starts the sequence afresh.
        int64_t next() const { return num_threads + pool_->next_item_.fetch_add(1, std::memory_order_relaxed); }

        friend class ThreadPool;
        Team(ThreadPool* pool, int thread, int num_threads) : thread(thread), num_threads(num_threads), pool_(pool) {}
        ThreadPool* pool_;
    };

    // job(const Team&) on every thread; returns when all are done. The job must not throw.
    template <typename Job>
    void run(Job&& job) {
        run_erased([](void* context, const Team& team) { (*static_cast<std::remove_reference_t<Job>*>(context))(team); },
                   &job);
    }

  private:
    using ErasedJob = void (*)(void* context, const Team& team);

    void run_erased(ErasedJob job, void* context);
    void worker(int thread);
    void barrier();

    int num_threads_;
    std::vector<int> cores_;  // empty: threads are not pinned
    std::vector<std::thread> workers_;
    std::mutex run_mutex_;  // one job at a time

    ErasedJob job_ = nullptr;
    void* context_ = nullptr;

    // Each on a cache line of its own: they are written by one core and polled by the others.
    alignas(64) std::atomic<uint32_t> generation_{0};  // counts jobs; odd bits have no meaning
    alignas(64) std::atomic<int> arrived_{0};          // at the present barrier
    alignas(64) std::atomic<uint32_t> phase_{0};       // counts barriers passed
    alignas(64) std::atomic<int64_t> next_item_{0};
    alignas(64) std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    std::mutex sleep_mutex_;
    std::condition_variable wake_;
};

}  // namespace pellucid
