#include "vector_avx512.hpp"
// after the vector: the loops are written in terms of it
#include "loops.hpp"

namespace relay_eps {

const KernelTable kAvx512Table = make_table("avx512");

}  // namespace relay_eps
