//! Which types of things a reading knows, and what reading something yields.
//!
//! The reference lets programs add types of their own. So do we, as a value: start from
//! [`Registry::builtin`], add to a copy, and read with it. Nothing global changes.

pub(crate) mod kinds;

use std::sync::LazyLock;

use kinds::Kinds;

use crate::Result;
use crate::client_options::{self, ClientOptions};
use crate::entry::{self, Entry};
use crate::environment::{self, EnvValue};
use crate::error::raise;
use crate::lax::{Checked, Input, PathSegment};
use crate::mount::{self, MountStrategy};
use crate::snapshot::{self, Snapshot};
use crate::state::{self, BackendState};

/// A value, and what there is to say about it although it was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed<T> {
    /// What was read.
    pub value: T,
    /// What the caller should tell somebody.
    pub warnings: Vec<Warning>,
}

/// Something odd in an input that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where in the input.
    pub path: Vec<PathSegment>,
    /// What is odd.
    pub message: String,
}

/// Every type that a reading knows.
///
/// ```
/// use bastide_model::custom::{Custom, CustomType};
/// use bastide_model::environment::{EnvValue, Environment};
/// use bastide_model::lax::{Context, Object};
/// use bastide_model::{Registry, Result};
/// use serde_json::{Map, Value, json};
///
/// /// A variable whose value is fetched by name when it is needed.
/// #[derive(Debug)]
/// struct Secret(String);
///
/// impl CustomType for Secret {
///     fn type_name(&self) -> &str {
///         "secret"
///     }
///
///     fn fields(&self) -> Result<Map<String, Value>> {
///         let mut out = Object::new();
///         out.put("name", &self.0)?;
///         Ok(out.into_map())
///     }
/// }
///
/// let registry = Registry::builtin().clone().with_env_value("secret", "Secret", |input| {
///     let mut fields = input.fields("Secret")?;
///     fields.accept("type");
///     let name: Option<String> = fields.required("name");
///     fields.build(|| Some(EnvValue::Custom(Custom::new(Secret(name?)))))
/// })?;
///
/// let environment: Environment = Context::with(&registry)
///     .read(&json!({"value": {"TOKEN": {"type": "secret", "name": "deploy"}}}))?;
/// let resolved = environment.resolve(|_, custom| {
///     let secret = custom.downcast::<Secret>().map_or("", |secret| &secret.0);
///     Ok(format!("value of {secret}"))
/// })?;
/// assert_eq!(resolved["TOKEN"], "value of deploy");
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Registry {
    entries: Kinds<Entry>,
    env_values: Kinds<EnvValue>,
    mount_strategies: Kinds<MountStrategy>,
    snapshots: Kinds<Snapshot>,
    backend_states: Kinds<BackendState>,
    client_options: Kinds<ClientOptions>,
}

impl Registry {
    /// The types that come with Bastide.
    #[must_use]
    pub fn builtin() -> &'static Self {
        static BUILTIN: LazyLock<Registry> = LazyLock::new(|| Registry {
            entries: Kinds::new(&entry::BUILTIN),
            env_values: Kinds::new(&environment::BUILTIN),
            mount_strategies: Kinds::new(&mount::BUILTIN_STRATEGIES),
            snapshots: Kinds::new(&snapshot::BUILTIN),
            backend_states: Kinds::new(&state::BUILTIN),
            client_options: Kinds::new(&client_options::BUILTIN),
        });
        &BUILTIN
    }

    /// Adds a type of entry. `owner` names the program's type in error messages.
    ///
    /// # Errors
    ///
    /// `ValueError` if the word is empty or taken.
    pub fn with_entry(
        mut self,
        tag: &str,
        owner: &str,
        read: impl Fn(Input<'_>) -> Checked<Entry> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.entries.add(tag, owner, read, |existing| {
            raise::value_error(format!(
                "Artifact type `{tag}` is already registered to {existing}; refusing to register \
                 {owner}"
            ))
        })?;
        Ok(self)
    }

    /// Adds a type of environment value.
    ///
    /// # Errors
    ///
    /// `TypeError` if the word is taken; `ValueError` if it is empty.
    pub fn with_env_value(
        mut self,
        tag: &str,
        owner: &str,
        read: impl Fn(Input<'_>) -> Checked<EnvValue> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.env_values.add(tag, owner, read, |existing| {
            raise::type_error(format!("env value type `{tag}` is already registered by {existing}"))
        })?;
        Ok(self)
    }

    /// Adds a way to mount.
    ///
    /// # Errors
    ///
    /// `TypeError` if the word is taken; `ValueError` if it is empty.
    pub fn with_mount_strategy(
        mut self,
        tag: &str,
        owner: &str,
        read: impl Fn(Input<'_>) -> Checked<MountStrategy> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.mount_strategies.add(tag, owner, read, |existing| {
            raise::type_error(format!(
                "mount strategy type `{tag}` is already registered by {existing}"
            ))
        })?;
        Ok(self)
    }

    /// Adds a type of snapshot.
    ///
    /// # Errors
    ///
    /// `TypeError` if the word is taken; `ValueError` if it is empty.
    pub fn with_snapshot(
        mut self,
        tag: &str,
        owner: &str,
        read: impl Fn(Input<'_>) -> Checked<Snapshot> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.snapshots.add(tag, owner, read, |existing| {
            raise::type_error(format!("snapshot type `{tag}` is already registered by {existing}"))
        })?;
        Ok(self)
    }

    /// Adds what a backend stores of its sessions; `read` is given the whole state and takes the
    /// backend's own fields out of it.
    ///
    /// # Errors
    ///
    /// `TypeError` if the word is taken; `ValueError` if it is empty.
    pub fn with_backend_state(
        mut self,
        tag: &str,
        owner: &str,
        read: impl Fn(Input<'_>) -> Checked<BackendState> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.backend_states.add(tag, owner, read, |existing| {
            let message =
                format!("sandbox session state type `{tag}` is already registered by {existing}");
            raise::type_error(message)
        })?;
        Ok(self)
    }

    /// The words of all types of entries, sorted.
    pub fn entry_types(&self) -> impl Iterator<Item = &str> {
        self.entries.words()
    }

    /// Whether there is a type of entry with that word.
    pub(crate) fn has_entry(&self, tag: &str) -> bool {
        self.entries.has(tag)
    }

    /// Whether a program added a way to mount with that word.
    pub(crate) fn has_own_mount_strategy(&self, tag: &str) -> bool {
        self.mount_strategies.has(tag) && !Self::builtin().mount_strategies.has(tag)
    }

    pub(crate) fn entries(&self) -> &Kinds<Entry> {
        &self.entries
    }

    pub(crate) fn env_values(&self) -> &Kinds<EnvValue> {
        &self.env_values
    }

    pub(crate) fn mount_strategies(&self) -> &Kinds<MountStrategy> {
        &self.mount_strategies
    }

    pub(crate) fn snapshots(&self) -> &Kinds<Snapshot> {
        &self.snapshots
    }

    pub(crate) fn backend_states(&self) -> &Kinds<BackendState> {
        &self.backend_states
    }

    pub(crate) fn client_options(&self) -> &Kinds<ClientOptions> {
        &self.client_options
    }
}
