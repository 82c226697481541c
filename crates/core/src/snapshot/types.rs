//! Which types of snapshots a client knows, and who keeps them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bastide_model::snapshot::Snapshot;

use super::local::Local;
use super::remote::Remote;
use super::{NoopSnapshot, SnapshotStorage};
use crate::{Error, ErrorKind, Result};

type Make = Arc<dyn Fn(&Snapshot) -> Result<Arc<dyn SnapshotStorage>> + Send + Sync>;

/// The types of snapshots, and what keeps snapshots of each type.
///
/// The reference's own types, `noop`, `local` and `remote`, are always known. A program adds types
/// of its own with [`with`](Self::with); the name is the one of the type in a
/// [`Registry`](bastide_model::Registry).
#[derive(Clone, Default)]
pub struct SnapshotTypes {
    makers: BTreeMap<String, Make>,
}

impl SnapshotTypes {
    /// Adds a type, or replaces the keeper of a known one.
    #[must_use]
    pub fn with(
        mut self,
        tag: impl Into<String>,
        make: impl Fn(&Snapshot) -> Result<Arc<dyn SnapshotStorage>> + Send + Sync + 'static,
    ) -> Self {
        self.makers.insert(tag.into(), Arc::new(make));
        self
    }

    /// The keeper of a snapshot.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for an unknown type; otherwise the error of the type's own
    /// constructor.
    pub fn keeper(&self, snapshot: &Snapshot) -> Result<Arc<dyn SnapshotStorage>> {
        let tag = snapshot.type_name();
        if let Some(make) = self.makers.get(tag) {
            return make(snapshot);
        }
        match snapshot {
            Snapshot::Noop { .. } => {
                return Ok(Arc::new(NoopSnapshot { snapshot: snapshot.clone() }));
            }
            Snapshot::Local(local) => return Ok(Arc::new(Local(local.clone()))),
            Snapshot::Remote { id, client_dependency_key } => {
                let (id, key) = (id.clone(), client_dependency_key.clone());
                return Ok(Arc::new(Remote { id, key }));
            }
            Snapshot::Custom(_) => {}
        }
        let message = format!("nobody here keeps snapshots of type `{tag}`");
        Err(Error::new(ErrorKind::Unsupported, message).with_context("type", tag))
    }
}

impl fmt::Debug for SnapshotTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.makers.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use bastide_model::custom::CustomType;
    use bastide_model::lax;
    use bastide_model::snapshot::CustomSnapshot;
    use serde_json::{Map, Value, json};

    use super::*;

    #[derive(Debug)]
    struct RegisteredTypes;

    impl CustomType for RegisteredTypes {
        fn type_name(&self) -> &str {
            "shelf"
        }

        fn fields(&self) -> Result<Map<String, Value>> {
            Ok(Map::new())
        }
    }

    impl CustomSnapshot for RegisteredTypes {
        fn id(&self) -> &str {
            "a"
        }
    }

    #[test]
    fn knows_the_types_of_the_reference_and_its_own_and_refuses_others() {
        let types = SnapshotTypes::default();
        let noop = Snapshot::Noop { id: "a".to_owned() };
        assert!(types.keeper(&noop).unwrap().is_noop());
        let local: Snapshot =
            lax::read(&json!({"type": "local", "id": "a", "base_path": "/s"})).unwrap();
        assert!(!types.keeper(&local).unwrap().is_noop());
        let registered = Snapshot::custom(RegisteredTypes);
        assert_eq!(types.keeper(&registered).unwrap_err().kind(), ErrorKind::Unsupported);
        let types = types
            .with("shelf", |snapshot| Ok(Arc::new(NoopSnapshot { snapshot: snapshot.clone() })));
        assert!(types.keeper(&registered).is_ok());
    }
}
