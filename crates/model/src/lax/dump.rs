//! Models back to JSON, field by field in the reference's order.

use indexmap::IndexMap;
use serde_json::{Map, Number, Value};

use crate::{Error, ErrorKind, Result};

/// A value that can be written as JSON, exactly as the reference writes it.
pub trait Dump {
    /// The JSON value.
    ///
    /// # Errors
    ///
    /// `PydanticSerializationError` for what JSON cannot hold, such as bytes that are not text.
    fn dump(&self) -> Result<Value>;
}

/// An object being written; fields keep the order in which they are put.
///
/// ```
/// use bastide_model::lax::Object;
///
/// let mut out = Object::new();
/// out.put("path", "/data")?;
/// out.put("description", &None::<String>)?;
/// out.put_some("host_path", &None::<String>)?;
/// assert_eq!(out.into_value().to_string(), r#"{"path":"/data","description":null}"#);
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Object(Map<String, Value>);

impl Object {
    /// Starts with no fields.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a field; `None` is written as `null`.
    ///
    /// # Errors
    ///
    /// Whatever the value says.
    pub fn put<T: Dump + ?Sized>(&mut self, name: &str, value: &T) -> Result<()> {
        self.0.insert(name.to_owned(), value.dump()?);
        Ok(())
    }

    /// Writes a field only if there is a value.
    ///
    /// # Errors
    ///
    /// Whatever the value says.
    pub fn put_some<T: Dump>(&mut self, name: &str, value: &Option<T>) -> Result<()> {
        value.as_ref().map_or(Ok(()), |value| self.put(name, value))
    }

    /// Adds the fields of another object after the ones already there.
    pub fn extend(&mut self, fields: Map<String, Value>) {
        self.0.extend(fields);
    }

    /// The finished object.
    #[must_use]
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// The finished object's fields.
    #[must_use]
    pub fn into_map(self) -> Map<String, Value> {
        self.0
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        object.into_value()
    }
}

impl Dump for str {
    fn dump(&self) -> Result<Value> {
        Ok(Value::from(self))
    }
}

impl Dump for String {
    fn dump(&self) -> Result<Value> {
        self.as_str().dump()
    }
}

impl Dump for bool {
    fn dump(&self) -> Result<Value> {
        Ok(Value::from(*self))
    }
}

impl Dump for i128 {
    fn dump(&self) -> Result<Value> {
        let number = Number::from_i128(*self);
        number.map(Value::Number).ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("{self} does not fit into a JSON number"))
        })
    }
}

impl Dump for u16 {
    fn dump(&self) -> Result<Value> {
        Ok(Value::from(*self))
    }
}

/// Infinities and not-a-number become `null`, as in the reference's JSON.
impl Dump for f64 {
    fn dump(&self) -> Result<Value> {
        Ok(Number::from_f64(*self).map_or(Value::Null, Value::Number))
    }
}

impl Dump for Value {
    fn dump(&self) -> Result<Value> {
        Ok(self.clone())
    }
}

impl<T: Dump> Dump for Option<T> {
    fn dump(&self) -> Result<Value> {
        self.as_ref().map_or(Ok(Value::Null), T::dump)
    }
}

impl<T: Dump> Dump for [T] {
    fn dump(&self) -> Result<Value> {
        self.iter().map(T::dump).collect::<Result<Vec<_>>>().map(Value::Array)
    }
}

impl<T: Dump> Dump for Vec<T> {
    fn dump(&self) -> Result<Value> {
        self.as_slice().dump()
    }
}

impl<T: Dump> Dump for IndexMap<String, T> {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        for (key, value) in self {
            out.put(key, value)?;
        }
        Ok(out.into())
    }
}
