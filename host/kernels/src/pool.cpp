#include "pool.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "float_environment.hpp"

namespace relay_eps {
namespace {

// One pass. It lives on the caller's stack; the crew's count of busy workers says when it may go.
class Pass {
 public:
  Pass(const Chunks& chunks, const Pool::Work& work) : chunks_(chunks), count_(chunks.count()), work_(work) {}

  int64_t count() const { return count_; }

  void take_chunks() noexcept {
    try {
      for (int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
        work_(chunks_.begin(i), chunks_.end(i));
      }
    } catch (...) {
      next_.store(count_);
      const std::lock_guard<std::mutex> lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  // Once nobody takes chunks any more.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const Chunks chunks_;
  const int64_t count_;
  const Pool::Work& work_;
  std::atomic<int64_t> next_{0};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

// New threads inherit the signal mask: with every signal blocked, Ctrl-C wakes the interpreter's thread, never a worker.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t saved_;
};

}  // namespace

// The workers of one process and everything they lock. A fork copies the locks but not the threads, so the child
// abandons the whole object.
class Pool::Crew {
 public:
  explicit Crew(int workers) : process_(getpid()) {
    const SignalsBlocked blocked;
    try {
      for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { serve(); });
    } catch (...) {
      dismiss();
      throw;
    }
  }
  ~Crew() { dismiss(); }

  bool of_this_process() const { return process_ == getpid(); }

  void run(Pass& pass) {
    const std::lock_guard<std::mutex> one_pass(pass_mutex_);
    const FloatEnvironment environment;
    const int64_t helpers = std::min<int64_t>(static_cast<int64_t>(workers_.size()), pass.count() - 1);
    if (helpers > 0) offer(pass, helpers);
    pass.take_chunks();
    if (helpers > 0) withdraw();
    pass.rethrow();
  }

 private:
  void offer(Pass& pass, int64_t helpers) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      pass_ = &pass;
      wanted_ = helpers;
    }
    wake_.notify_all();
  }

  // Workers that have not woken by now find nothing to do; those that have are waited for.
  void withdraw() {
    std::unique_lock<std::mutex> lock(mutex_);
    pass_ = nullptr;
    wanted_ = 0;
    idle_.wait(lock, [this] { return busy_ == 0; });
  }

  void serve() {
    const FloatEnvironment environment;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || wanted_ > 0; });
      if (stopping_) return;
      --wanted_;
      ++busy_;
      Pass& pass = *pass_;
      lock.unlock();
      pass.take_chunks();
      lock.lock();
      if (--busy_ == 0) idle_.notify_one();
    }
  }

  void dismiss() noexcept {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  const pid_t process_;
  std::mutex pass_mutex_;  // held for a whole pass
  std::mutex mutex_;       // guards what follows
  std::condition_variable wake_;
  std::condition_variable idle_;
  Pass* pass_ = nullptr;
  int64_t wanted_ = 0;  // workers that may still join the pass
  int64_t busy_ = 0;    // workers that have joined it
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

Pool::Pool(int threads) : threads_(threads), crew_(new Crew(threads - 1)) {}

Pool::~Pool() {
  Crew* const crew = crew_.load();
  if (crew->of_this_process()) delete crew;
}

void Pool::run(const Chunks& chunks, const Work& work) {
  Pass pass(chunks, work);
  crew_of_this_process().run(pass);
}

Pool::Crew& Pool::crew_of_this_process() {
  Crew* crew = crew_.load();
  if (crew->of_this_process()) return *crew;
  // The parent's crew is left as it is: its locks may be held for ever by threads that were not copied.
  Crew* const fresh = new Crew(threads_ - 1);
  if (crew_.compare_exchange_strong(crew, fresh)) return *fresh;
  delete fresh;
  return *crew;
}

}  // namespace relay_eps
