//! Which types of snapshots a client knows, and who keeps them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bastide_model::snapshot::Snapshot;

use super::{Nothing, SnapshotKeeper};
use crate::{Error, ErrorKind, Result};

type Make = Arc<dyn Fn(&Snapshot) -> Result<Arc<dyn SnapshotKeeper>> + Send + Sync>;

/// Who keeps the snapshots of each type.
///
/// `noop` is always known. A program adds what it has of its own with [`with`](Self::with); the word
/// is the one under which the type is in a [`Registry`](bastide_model::Registry).
#[derive(Clone, Default)]
pub struct SnapshotTypes {
    makers: BTreeMap<String, Make>,
}

impl SnapshotTypes {
    /// Adds a type, or puts another keeper in the place of the one a type had.
    #[must_use]
    pub fn with(
        mut self,
        word: impl Into<String>,
        make: impl Fn(&Snapshot) -> Result<Arc<dyn SnapshotKeeper>> + Send + Sync + 'static,
    ) -> Self {
        self.makers.insert(word.into(), Arc::new(make));
        self
    }

    /// Who keeps this snapshot.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a type nobody keeps; and whatever its maker says.
    pub fn keeper(&self, snapshot: &Snapshot) -> Result<Arc<dyn SnapshotKeeper>> {
        let word = snapshot.type_name();
        if let Some(make) = self.makers.get(word) {
            return make(snapshot);
        }
        if let Snapshot::Noop { .. } = snapshot {
            return Ok(Arc::new(Nothing { snapshot: snapshot.clone() }));
        }
        let message = format!("nobody here keeps snapshots of type `{word}`");
        Err(Error::new(ErrorKind::Unsupported, message).with("type", word))
    }
}

impl fmt::Debug for SnapshotTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.makers.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use bastide_model::lax;
    use serde_json::json;

    use super::*;

    #[test]
    fn knows_its_own_types_and_refuses_others() {
        let noop = Snapshot::Noop { id: "a".to_owned() };
        let local: Snapshot =
            lax::read(&json!({"type": "local", "id": "a", "base_path": "/s"})).unwrap();
        let types = SnapshotTypes::default();
        assert!(types.keeper(&noop).unwrap().keeps_nothing());
        assert_eq!(types.keeper(&local).unwrap_err().kind(), ErrorKind::Unsupported);
        let types =
            types.with("local", |snapshot| Ok(Arc::new(Nothing { snapshot: snapshot.clone() })));
        assert!(types.keeper(&local).is_ok());
    }
}
