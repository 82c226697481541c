//! The model from outside: files people write, types programs bring, inputs nobody sends by mistake.

mod documents;
mod hostile;
mod mounts;
mod registry;
mod states;
