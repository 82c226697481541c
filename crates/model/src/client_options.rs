//! What a user asks of a backend when a session is made.

use indexmap::IndexMap;
use serde_json::Value;

use crate::custom::Custom;
use crate::lax::{Checked, Context, Dump, FromInput, Input, Invalid, Object};
use crate::registry::Registry;
use crate::registry::kinds::Builtin;
use crate::state::NetworkMode;
use crate::{Error, Result, python};

/// What a user asks of a backend when a session is made.
///
/// Ports are not checked here: what is not a port is refused with the state of the session.
///
/// ```
/// use bastide_model::ClientOptions;
/// use bastide_model::lax::{self, Dump};
/// use serde_json::json;
///
/// let options: ClientOptions = lax::read(&json!({"type": "docker", "image": "debian"}))?;
/// assert_eq!(options.dump()?["labels"], json!({}));
/// assert!(lax::read::<ClientOptions>(&json!({"type": "docker", "img": "debian"})).is_err());
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum ClientOptions {
    /// For a session in a folder of the host.
    UnixLocal {
        /// The ports that can be reached from outside.
        exposed_ports: Vec<i128>,
    },
    /// For a session in a container.
    Docker {
        /// The image.
        image: String,
        /// The ports that can be reached from outside.
        exposed_ports: Vec<i128>,
        /// What network it has.
        network_mode: Option<NetworkMode>,
        /// The labels it has.
        labels: IndexMap<String, String>,
    },
    /// For a program's own backend.
    Custom(Custom),
}

impl ClientOptions {
    /// The word under `type`, which is also the backend's.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match self {
            Self::UnixLocal { .. } => "unix_local",
            Self::Docker { .. } => "docker",
            Self::Custom(custom) => custom.type_name(),
        }
    }

    /// Reads options of a run's configuration, where `type` may be left out because the client for
    /// `backend` was chosen already.
    ///
    /// # Errors
    ///
    /// `ValueError` for options of another backend; `TypeError` for unknown keys; else as reading.
    pub fn coerce(options: &Value, backend: &str, registry: &Registry) -> Result<Self> {
        let Some(given) = options.as_object() else {
            return Context::with(registry).read(options);
        };
        let explicit = given.get("type").filter(|word| !word.is_null());
        if explicit.is_some_and(|word| word != backend) {
            let word = explicit.map(python::text).unwrap_or_default();
            return Err(Error::value_error(format!(
                "sandbox.options type `{word}` does not match selected sandbox client backend \
                 `{backend}`"
            )));
        }
        let known = KEYS.iter().find(|(word, _)| *word == backend).map(|(_, keys)| *keys);
        let is_unknown =
            |key: &&str| *key != "type" && known.is_some_and(|known| !known.contains(key));
        let mut unknown: Vec<&str> = given.keys().map(String::as_str).filter(is_unknown).collect();
        if !unknown.is_empty() {
            unknown.sort_unstable();
            let unknown = unknown.join(", ");
            return Err(Error::type_error(format!("Unknown sandbox.options settings: {unknown}")));
        }
        let mut options = given.clone();
        options.entry("type").or_insert_with(|| backend.into());
        let read = |input: Input<'_>| registry.client_options().read(input, backend, "options");
        Context::with(registry).check(&Value::Object(options), read).map_err(Invalid::into_error)
    }
}

const UNIX_LOCAL_KEYS: &[&str] = &["exposed_ports"];
const DOCKER_KEYS: &[&str] = &["image", "exposed_ports", "network_mode", "labels"];

/// The keys of each backend's options, beside `type`.
const KEYS: [(&str, &[&str]); 2] = [("unix_local", UNIX_LOCAL_KEYS), ("docker", DOCKER_KEYS)];

/// The options of the backends that come with Bastide.
pub(crate) const BUILTIN: [Builtin<ClientOptions>; 2] = [
    ("unix_local", "UnixLocalSandboxClientOptions", |input| {
        check_keys(input, "UnixLocalSandboxClientOptions", UNIX_LOCAL_KEYS, &[])?;
        let mut fields = input.fields("UnixLocalSandboxClientOptions")?;
        fields.or_with("type", (), |input| input.one_of(&[("unix_local", ())]));
        let exposed_ports = fields.or_with("exposed_ports", Vec::new(), ports);
        fields.build(|| Some(ClientOptions::UnixLocal { exposed_ports: exposed_ports? }))
    }),
    ("docker", "DockerSandboxClientOptions", |input| {
        check_keys(input, "DockerSandboxClientOptions", DOCKER_KEYS, &["image"])?;
        let mut fields = input.fields("DockerSandboxClientOptions")?;
        fields.or_with("type", (), |input| input.one_of(&[("docker", ())]));
        let image = fields.required("image");
        let exposed_ports = fields.or_with("exposed_ports", Vec::new(), ports);
        let network_mode = fields.or_with("network_mode", None, NetworkMode::optional);
        let labels: Option<Option<IndexMap<String, String>>> = fields.or_default("labels");
        let options = fields
            .build(|| Some((image?, exposed_ports?, network_mode?, labels?.unwrap_or_default())))?;
        let (image, exposed_ports, network_mode, labels) = options;
        if network_mode == Some(NetworkMode::None) && !exposed_ports.is_empty() {
            let message = format!("Value error, {}", NetworkMode::NO_PORTS);
            return Err(input.field_error("value_error", message));
        }
        Ok(ClientOptions::Docker { image, exposed_ports, network_mode, labels })
    }),
];

fn ports(input: Input<'_>) -> Checked<Vec<i128>> {
    input.tuple(i128::from_input)
}

/// Options are the arguments of a constructor: unknown ones are refused at once, and so are missing
/// ones.
fn check_keys(input: Input<'_>, model: &str, known: &[&str], required: &[&str]) -> Checked<()> {
    let given = input.value().as_object();
    let mut given = given.into_iter().flat_map(|given| given.keys().map(String::as_str));
    if let Some(unknown) = given.clone().find(|key| *key != "type" && !known.contains(key)) {
        let message = format!("{model}.__init__() got an unexpected keyword argument '{unknown}'");
        return Err(input.type_error(message));
    }
    match required.iter().find(|key| !given.any(|given| given == **key)) {
        Some(missing) => Err(input.type_error(format!(
            "{model}.__init__() missing 1 required positional argument: '{missing}'"
        ))),
        None => Ok(()),
    }
}

impl FromInput for ClientOptions {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let Some(map) = input.value().as_object() else {
            let message = "sandbox client options payload must be a BaseSandboxClientOptions or \
                           object payload";
            return Err(input.type_error(message));
        };
        let word = map.get("type").unwrap_or(&Value::Null);
        match word.as_str().filter(|word| input.registry().client_options().has(word)) {
            Some(known) => input.registry().client_options().read(input, known, "options"),
            None => {
                let word = python::text(word);
                Err(input.value_error(format!("unknown sandbox client options type `{word}`")))
            }
        }
    }
}

impl Dump for ClientOptions {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("type", self.type_name())?;
        match self {
            Self::UnixLocal { exposed_ports } => out.put("exposed_ports", exposed_ports)?,
            Self::Docker { image, exposed_ports, network_mode, labels } => {
                out.put("image", image)?;
                out.put("exposed_ports", exposed_ports)?;
                out.put("network_mode", &network_mode.map(|mode| mode.as_str().to_owned()))?;
                out.put("labels", labels)?;
            }
            Self::Custom(custom) => out.extend(custom.tagged_fields()?.into_map()),
        }
        Ok(out.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_may_leave_out_what_its_client_says() {
        let docker =
            |options: Value| ClientOptions::coerce(&options, "docker", Registry::builtin());
        assert_eq!(docker(json!({"image": "i"})).unwrap().type_name(), "docker");
        let cases = [
            (
                json!({"type": "unix_local"}),
                "sandbox.options type `unix_local` does not match selected sandbox client backend \
                 `docker`",
            ),
            (json!({"image": "i", "b": 1, "a": 2}), "Unknown sandbox.options settings: a, b"),
            (json!({"image": "i", "type": null}), "type: Input should be 'docker'"),
        ];
        for (options, want) in cases {
            assert_eq!(docker(options).unwrap_err().message(), want);
        }
    }
}
