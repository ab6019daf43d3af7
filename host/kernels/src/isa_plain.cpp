#include "vector_plain.hpp"
// after the vector: the loops are written in terms of it
#include "loops.hpp"

namespace relay_eps {

const KernelTable kPlainTable = make_table("plain");

}  // namespace relay_eps
