#include "vector_avx2.hpp"
// after the vector: the loops are written in terms of it
#include "loops.hpp"

namespace relay_eps {

const KernelTable kAvx2Table = make_table("avx2");

}  // namespace relay_eps
