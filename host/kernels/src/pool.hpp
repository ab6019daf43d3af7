// Worker threads that share one pass over memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace relay_eps {

// How [0, length) is cut into chunks; every chunk but the last has `size` elements.
struct Chunks {
  int64_t length;
  int64_t size;

  int64_t count() const { return length / size + (length % size != 0); }
  int64_t begin(int64_t index) const { return index * size; }
  int64_t end(int64_t index) const { return length - begin(index) < size ? length : begin(index) + size; }
};

// A budget of threads, the calling one included. Idle workers sleep. The chunks of a pass are taken one by one from
// a counter, so that a core that is busy with something else delays the pass by one chunk at most.
//
// Passes asked for by several threads run one after another. After a fork the child gets workers of its own at its
// first pass. The destructor neither throws nor waits for more than the chunks in flight.
class Pool {
 public:
  using Work = std::function<void(int64_t begin, int64_t end)>;

  // Throws std::system_error where the system has no thread left to give.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls `work` on every chunk, and returns when all are done. If one throws, no new chunks are begun and the first
  // exception comes out here.
  void run(const Chunks& chunks, const Work& work);

 private:
  class Crew;

  Crew& crew_of_this_process();

  const int threads_;
  std::atomic<Crew*> crew_;
};

}  // namespace relay_eps
