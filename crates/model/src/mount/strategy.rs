//! By which means storage is mounted.

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::Value;

use super::Mount;
use super::pattern::MountPattern;
use crate::Result;
use crate::custom::{Custom, CustomType};
use crate::lax::{Checked, Dump, FromInput, Input, Object};
use crate::registry::kinds::Builtin;
use crate::secret::Secret;

/// By which means storage is mounted.
#[derive(Debug, Clone, PartialEq)]
pub enum MountStrategy {
    /// By a program inside the sandbox.
    InContainer {
        /// Which one.
        pattern: MountPattern,
    },
    /// By a volume driver of the container engine.
    DockerVolume {
        /// Which one.
        driver: String,
        /// Options for it, which win over the ones made from the storage. Any may be a credential.
        driver_options: IndexMap<String, Secret>,
    },
    /// By a program of the host, outside the sandbox, which alone knows the keys.
    Host {
        /// How many bytes of disk the cache that sessions of one home share may take, if not the usual.
        cache_size: Option<i128>,
    },
    /// By means of the program's own.
    Custom(Custom<dyn CustomStrategy>),
}

/// A program's own means of mounting.
pub trait CustomStrategy: CustomType {
    /// Checks that this storage can be mounted so.
    ///
    /// # Errors
    ///
    /// Best a `MountConfigError` that says what does not fit.
    fn check(&self, mount: &Mount) -> Result<()>;
}

impl MountStrategy {
    /// By a program inside the sandbox.
    #[must_use]
    pub fn in_container(pattern: MountPattern) -> Self {
        Self::InContainer { pattern }
    }

    /// By a volume driver of the container engine, without options.
    #[must_use]
    pub fn docker_volume(driver: &str) -> Self {
        Self::DockerVolume { driver: driver.to_owned(), driver_options: IndexMap::new() }
    }

    /// By a program of the host, with the usual cache.
    #[must_use]
    pub fn host() -> Self {
        Self::Host { cache_size: None }
    }

    /// By means of the program's own.
    pub fn custom(strategy: impl CustomStrategy) -> Self {
        Self::Custom(Custom::sharing(Arc::new(strategy)))
    }

    /// The program inside the sandbox, if that is how it is mounted.
    #[must_use]
    pub fn pattern(&self) -> Option<&MountPattern> {
        match self {
            Self::InContainer { pattern } => Some(pattern),
            Self::DockerVolume { .. } | Self::Host { .. } | Self::Custom(_) => None,
        }
    }

    /// The word under `type`.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match self {
            Self::InContainer { .. } => "in_container",
            Self::DockerVolume { .. } => "docker_volume",
            Self::Host { .. } => "host",
            Self::Custom(custom) => custom.type_name(),
        }
    }
}

/// The means that come with Bastide.
pub(crate) const BUILTIN: [Builtin<MountStrategy>; 3] = [
    ("docker_volume", "DockerVolumeMountStrategy", |input| {
        let mut fields = input.fields("DockerVolumeMountStrategy")?;
        fields.accept("type");
        let driver = fields.required("driver");
        let driver_options = fields.or_default("driver_options");
        fields.build(|| {
            Some(MountStrategy::DockerVolume { driver: driver?, driver_options: driver_options? })
        })
    }),
    ("host", "HostMountStrategy", |input| {
        let mut fields = input.fields("HostMountStrategy")?;
        fields.accept("type");
        let cache_size = fields.or_default("cache_size");
        fields.build(|| Some(MountStrategy::Host { cache_size: cache_size? }))
    }),
    ("in_container", "InContainerMountStrategy", |input| {
        let mut fields = input.fields("InContainerMountStrategy")?;
        fields.accept("type");
        let pattern = fields.required("pattern");
        fields.build(|| Some(MountStrategy::InContainer { pattern: pattern? }))
    }),
];

impl FromInput for MountStrategy {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let Some(map) = input.value().as_object() else {
            let message = "mount strategy payload must be a MountStrategyBase or object payload";
            return Err(input.wrong_type("model_type", message.to_owned()));
        };
        let Some(tag) = map.get("type").and_then(Value::as_str) else {
            let message = "mount strategy payload must include a string `type` field";
            return Err(input.without_type(message));
        };
        input.registry().mount_strategies().read(input, tag, "mount strategy")
    }
}

impl Dump for MountStrategy {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("type", self.type_name())?;
        match self {
            Self::InContainer { pattern } => out.put("pattern", pattern)?,
            Self::DockerVolume { driver, driver_options } => {
                out.put("driver", driver)?;
                out.put("driver_options", driver_options)?;
            }
            Self::Host { cache_size } => out.put("cache_size", cache_size)?,
            Self::Custom(custom) => out = custom.tagged_fields()?,
        }
        Ok(out.into())
    }
}
