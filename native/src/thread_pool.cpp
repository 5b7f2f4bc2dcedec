#include "thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <set>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pellucid {
namespace {

// Between two jobs a worker waits awake for the time that a step's Python takes: a sleeping core of a virtual machine
// needs many times longer to come back. After the first part it lets anyone else who wants the core have it.
constexpr auto kSpinBetweenJobs = std::chrono::microseconds(100);
constexpr auto kAwakeBetweenJobs = std::chrono::microseconds(2000);
constexpr int kSpinsBeforeYield = 4000;  // at a barrier, about 50 us: after that, someone has taken a core from us

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int cgroup_cpu_limit() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period = 0;
    if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
    return std::max(1, static_cast<int>(std::ceil(std::stod(quota) / period)));
}

void pin_this_thread(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

// Keeps the calling thread on one core while a job runs, and gives it back its freedom afterwards: the caller is not
// ours, and threads it creates later would inherit the pin.
class ScopedPin {
  public:
    explicit ScopedPin(int core) {
        if (core < 0 || sched_getaffinity(0, sizeof saved_, &saved_) != 0) return;
        pinned_ = true;
        pin_this_thread(core);
    }
    ~ScopedPin() {
        if (pinned_) sched_setaffinity(0, sizeof saved_, &saved_);
    }

  private:
    cpu_set_t saved_;
    bool pinned_ = false;
};

}  // namespace

std::vector<int> physical_cores() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    std::vector<int> cores;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {0};
    std::set<std::string> seen;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
        std::string siblings;
        if (!(file >> siblings)) siblings = std::to_string(cpu);
        if (seen.insert(siblings).second) cores.push_back(cpu);
    }
    if (static_cast<int>(cores.size()) > cgroup_cpu_limit()) cores.resize(cgroup_cpu_limit());
    return cores;
}

ThreadPool::ThreadPool(int num_threads) {
    cores_ = physical_cores();
    num_threads_ = num_threads > 0 ? num_threads : static_cast<int>(cores_.size());
    if (num_threads_ > static_cast<int>(cores_.size()) || num_threads_ == 1) cores_.clear();
    for (int thread = 1; thread < num_threads_; ++thread) workers_.emplace_back([this, thread] { worker(thread); });
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard<std::mutex> lock(sleep_mutex_);
        stop_.store(true);
    }
    wake_.notify_all();
    for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run_erased(ErasedJob job, void* context) {
    std::lock_guard<std::mutex> one_at_a_time(run_mutex_);
    if (num_threads_ == 1) {
        next_item_.store(0, std::memory_order_relaxed);
        job(context, Team(this, 0, num_threads_));
        return;
    }
    ScopedPin pin(cores_.empty() ? -1 : cores_[0]);
    job_ = job;
    context_ = context;
    generation_.fetch_add(1, std::memory_order_seq_cst);
    // Pairs with the order (sleepers_, generation_) in worker(): either we see the sleeper or it sees the new generation.
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
        { std::lock_guard<std::mutex> lock(sleep_mutex_); }
        wake_.notify_all();
    }
    job(context, Team(this, 0, num_threads_));
    barrier();
}

void ThreadPool::worker(int thread) {
    if (!cores_.empty()) pin_this_thread(cores_[thread]);
    uint32_t seen = 0;
    while (true) {
        const auto begin = std::chrono::steady_clock::now();
        bool yielding = false;
        uint32_t now = generation_.load(std::memory_order_acquire);
        for (int spins = 0; now == seen && !stop_.load(std::memory_order_relaxed); ++spins) {
            if (yielding) sched_yield();
            else relax();
            now = generation_.load(std::memory_order_acquire);
            if (!yielding && (spins & 63) != 63) continue;
            const auto waited = std::chrono::steady_clock::now() - begin;
            yielding = waited > kSpinBetweenJobs;
            if (waited < kAwakeBetweenJobs) continue;
            std::unique_lock<std::mutex> lock(sleep_mutex_);
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen || stop_.load(); });
            sleepers_.fetch_sub(1, std::memory_order_seq_cst);
            now = generation_.load(std::memory_order_acquire);
        }
        if (now == seen) return;  // stop_
        seen = now;
        job_(context_, Team(this, thread, num_threads_));
        barrier();
    }
}

void ThreadPool::barrier() {
    if (num_threads_ == 1) {
        next_item_.store(0, std::memory_order_relaxed);
        return;
    }
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        next_item_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
        if (spins < kSpinsBeforeYield) relax();
        else sched_yield();
    }
}

}  // namespace pellucid
