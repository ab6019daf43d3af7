#include "vector_neon.hpp"
// after the vector: the loops are written in terms of it
#include "loops.hpp"

namespace relay_eps {

const KernelTable kNeonTable = make_table("neon");

}  // namespace relay_eps
