// Which ISA's kernels run: the best that this machine has, or the one that was asked for.
#pragma once

#include <string>

#include "kernels.h"

namespace ir_kernels {

const KernelTable& kernels();

// Comma-separated names of the ISAs that this machine can run, best first.
std::string runnable_isas();

// Makes `kernels()` return the named ISA's; false, and no change, if this machine cannot run it.
bool select_isa(const std::string& name);

}  // namespace ir_kernels
