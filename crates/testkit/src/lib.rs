//! What Bastide is tested with: the suites every backend must pass, the vectors runner and the
//! bench scenarios. Nothing here is shipped.
//!
//! *The reference* is the sandbox package of the OpenAI Agents SDK (Python), release 0.24.0.

pub mod chaos;
pub mod conformance;
pub mod engine;
pub mod escape;
pub mod fuzz;
pub mod live;
pub mod suite;
pub mod tools;
pub mod vectors;
