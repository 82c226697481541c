//! Reading models out of JSON the way the reference reads them, and writing them back.
//!
//! The reference is *lax*: `"7"` is an integer, `"yes"` a boolean, unknown keys are mostly ignored,
//! and a wrong input is answered with every wrong field at once. Every model of this crate that can
//! arrive as JSON implements [`FromInput`] on top of this kit, and [`Dump`] for the way back:
//!
//! ```
//! use bastide_model::Result;
//! use bastide_model::lax::{self, Checked, Dump, FromInput, Input, Object};
//! use serde_json::{Value, json};
//!
//! #[derive(Debug, PartialEq)]
//! struct Endpoint {
//!     host: String,
//!     port: i128,
//!     tls: bool,
//! }
//!
//! impl FromInput for Endpoint {
//!     fn from_input(input: Input<'_>) -> Checked<Self> {
//!         let mut fields = input.fields("Endpoint")?;
//!         let host = fields.required("host");
//!         let port = fields.required("port");
//!         let tls = fields.or("tls", false);
//!         fields.build(|| Some(Self { host: host?, port: port?, tls: tls? }))
//!     }
//! }
//!
//! impl Dump for Endpoint {
//!     fn dump(&self) -> Result<Value> {
//!         let mut out = Object::new();
//!         out.put("host", &self.host)?;
//!         out.put("port", &self.port)?;
//!         out.put("tls", &self.tls)?;
//!         Ok(out.into())
//!     }
//! }
//!
//! let endpoint: Endpoint = lax::read(&json!({"host": "a", "port": "80", "tls": "no"}))?;
//! assert_eq!(endpoint.dump()?, json!({"host": "a", "port": 80, "tls": false}));
//!
//! let error = lax::read::<Endpoint>(&json!({"port": "http"})).unwrap_err();
//! assert_eq!(error.class(), Some(bastide_model::ErrorClass::ValidationError));
//! assert_eq!(
//!     error.to_string(),
//!     "host: Field required\n\
//!      port: Input should be a valid integer, unable to parse string as an integer",
//! );
//! # Ok::<(), bastide_model::Error>(())
//! ```
//!
//! Three things can go wrong while reading ([`Invalid`]): fields do not validate and are collected;
//! a rule of ours refuses a value (in the reference: `ValueError`), which becomes one more field
//! error at the field whose rule it was, or an error of its own at the top; or something ends the
//! reading at once (in the reference: any other exception).
//!
//! | want | write |
//! |---|---|
//! | a field without default | `fields.required("name")` |
//! | a field with one | `fields.or("name", default)`, `fields.or_default("name")` |
//! | a field with a rule of its own | `fields.required_with("name", rule)`, `fields.or_with(..)` |
//! | one of a few words | `fields.or_with("mode", Mode::Fuse, \|i\| i.one_of(MODES))` |
//! | a union told apart by a tag | [`Input::tagged`] |
//! | unknown keys refused | `fields.forbid_extra()` before `build` |
//! | a rule that refuses | `Err(input.value_error("..."))`, `Err(input.type_error("..."))` |

mod context;
mod dump;
mod fields;
mod input;
mod input_path;
mod invalid;
mod number;
mod shapes;

pub use context::{Context, UnknownKeys};
pub use dump::{Dump, Object};
pub use fields::Fields;
pub use input::{FromInput, Input};
pub use invalid::{Checked, Invalid, PathSegment};
pub(crate) use number::is_int;
pub use shapes::Choice;

use serde_json::Value;

use crate::Result;

/// Reads a model, knowing only the built-in types, and forgets its warnings.
///
/// # Errors
///
/// What the reference would raise: `ValidationError` with every wrong field, `ValueError`,
/// `TypeError`, or the error of a rule.
pub fn read<T: FromInput>(value: &Value) -> Result<T> {
    Context::new().read(value)
}
