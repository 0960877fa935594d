//! What tests and benchmarks of LITE need.
