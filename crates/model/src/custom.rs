//! Values of types that a program brings itself.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::lax::Object;
use crate::{Error, ErrorClass, ErrorKind, Result};

/// A value of a program's own type inside one of our models: it says which type it is and how its
/// fields are written. What it *does* is up to whoever knows the type; see [`Custom::downcast`].
pub trait CustomType: Any + fmt::Debug + Send + Sync {
    /// The word under `type`, with which the type is in a [`Registry`](crate::Registry).
    fn type_name(&self) -> &str;

    /// The fields, without `type` and whatever the model around it writes.
    ///
    /// # Errors
    ///
    /// If they cannot be written as JSON.
    fn fields(&self) -> Result<Map<String, Value>>;
}

/// A shared value of a program's own type.
///
/// Two are equal if their type and their fields are.
pub struct Custom<T: CustomType + ?Sized = dyn CustomType>(Arc<T>);

impl<T: CustomType + ?Sized> Custom<T> {
    pub(crate) fn sharing(value: Arc<T>) -> Self {
        Self(value)
    }

    /// The object with the type's word in front of its fields.
    pub(crate) fn tagged_fields(&self) -> Result<Object> {
        let name = self.0.type_name();
        if name.is_empty() {
            let message = format!(
                "{:?} must explicitly declare its own non-empty `type` to be serialized",
                self.0
            );
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_class(ErrorClass::PydanticSerializationError));
        }
        let mut out = Object::new();
        out.put("type", name)?;
        out.extend(self.0.fields()?);
        // A type that writes a `type` field of its own does not get to change the word.
        out.put("type", name)?;
        Ok(out)
    }
}

impl Custom<dyn CustomType> {
    /// Shares a value.
    pub fn new(value: impl CustomType) -> Self {
        Self(Arc::new(value))
    }

    /// The value, if it is of this type.
    #[must_use]
    pub fn downcast<T: CustomType>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }
}

impl<T: CustomType + ?Sized> Deref for Custom<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: CustomType + ?Sized> Clone for Custom<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: CustomType + ?Sized> fmt::Debug for Custom<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: CustomType + ?Sized> PartialEq for Custom<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.type_name() == other.0.type_name()
            && matches!((self.0.fields(), other.0.fields()), (Ok(a), Ok(b)) if a == b)
    }
}
