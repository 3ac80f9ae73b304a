// What the table of targets says in words.
#pragma once

namespace cpu_backend {

// What the best target that runs here would gain on a better CPU, as "name: gain: CPUs"; empty
// where the build has none better.
const char* next_target();

}  // namespace cpu_backend
