// Which instruction sets this build holds and this CPU, under this operating system, can run.
#pragma once

#include <string>
#include <vector>

#include "table.hpp"

namespace relay_eps {

// Best first; "plain" is always there and last.
std::vector<const KernelTable*> available_tables();

// The table called `name`, or null where it is unknown or cannot run here.
const KernelTable* find_table(const std::string& name);

}  // namespace relay_eps
