//! Tests of whole policies.
