//! The environment of commands that run on the host itself.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde_json::Value;

use crate::Result;
use crate::error::raise;

/// The variables of the host that commands see where they do not see all of them: what tools need
/// to find each other, to speak the user's language and to trust the user's certificates.
pub const HOST_ENVIRONMENT_ALLOWLIST: [&str; 20] = [
    "CI",
    "FORCE_COLOR",
    "LANG",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NUMERIC",
    "LC_TIME",
    "NODE_EXTRA_CA_CERTS",
    "NO_COLOR",
    "PATH",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "UV_PYTHON",
];

/// Which variables of the host commands see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEnvironment {
    /// All of them.
    Inherited,
    /// Those of these names.
    Allowed(BTreeSet<String>),
}

impl Default for HostEnvironment {
    fn default() -> Self {
        Self::Allowed(HOST_ENVIRONMENT_ALLOWLIST.map(str::to_owned).into())
    }
}

impl HostEnvironment {
    /// The choice a caller makes by the options of the reference, as JSON: `inherit_host_environment`, which is so
    /// unless it is given, and `host_environment_allowlist`.
    ///
    /// # Errors
    ///
    /// `ValueError` if both are chosen, `TypeError` if the list is none.
    pub fn of_options(options: &Value) -> Result<Self> {
        const NO_LIST: &str = "host_environment_allowlist must be a collection of variable names";
        let inherit = options["inherit_host_environment"].as_bool().unwrap_or(true);
        match &options["host_environment_allowlist"] {
            Value::Null if inherit => Ok(Self::Inherited),
            Value::Null => Ok(Self::default()),
            _ if inherit => Err(raise::value_error(
                "host_environment_allowlist requires inherit_host_environment=False",
            )),
            Value::Array(names) => {
                let names = names.iter().filter_map(Value::as_str).map(str::to_owned);
                Ok(Self::Allowed(names.collect()))
            }
            Value::Object(names) => Ok(Self::Allowed(names.keys().cloned().collect())),
            _ => Err(raise::type_error(NO_LIST)),
        }
    }

    /// The environment of a command: what is let through of `host`, over it what the manifest says,
    /// and the workspace as home.
    ///
    /// ```
    /// use bastide_model::HostEnvironment;
    ///
    /// let host = [("PATH", "/bin"), ("AWS_SECRET", "s")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    /// let command = HostEnvironment::default().command_environment(host, Default::default(), "/w");
    /// assert_eq!(command.keys().collect::<Vec<_>>(), ["PATH", "HOME"]);
    /// ```
    #[must_use]
    pub fn command_environment(
        &self,
        host: impl IntoIterator<Item = (String, String)>,
        manifest: IndexMap<String, String>,
        workspace_root: &str,
    ) -> IndexMap<String, String> {
        let passes = |name: &str| match self {
            Self::Inherited => true,
            Self::Allowed(names) => names.contains(name),
        };
        let mut environment: IndexMap<_, _> =
            host.into_iter().filter(|(name, _)| passes(name)).collect();
        environment.extend(manifest);
        environment.insert("HOME".to_owned(), workspace_root.to_owned());
        environment
    }
}
