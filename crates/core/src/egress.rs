//! The network of sessions that have a policy: what hosts know of it besides the policy itself.

mod presets;

pub use presets::{Machine, preset_places, preset_variables};
