//! What a user asks of a backend when a session is made.

use indexmap::IndexMap;
use serde_json::Value;

use crate::custom::Custom;
use crate::error::raise;
use crate::lax::{Checked, Context, Dump, FromInput, Input, Invalid, Object};
use crate::policy::Policy;
use crate::receipt::{Isolation, NetworkAccess, Rung};
use crate::registry::Registry;
use crate::registry::kinds::Builtin;
use crate::state::NetworkMode;
use crate::{Result, python};

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
    /// For a session on this machine, confined.
    Local {
        /// The ports that can be reached from outside.
        exposed_ports: Vec<i128>,
        /// How it is confined.
        isolation: Isolation,
        /// What network it has.
        network: NetworkAccess,
        /// The policy of a network that has one.
        policy: Option<Box<Policy>>,
        /// Whether commands may make sandboxes of their own.
        nested_sandbox: bool,
        /// What commands may use, all of them together.
        limits: LocalLimits,
    },
    /// For a program's own backend.
    Custom(Custom),
}

/// What the commands of a session on this machine may use, all of them together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalLimits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// How many processes.
    pub pids: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u64>,
    /// Bytes of disk.
    pub disk: Option<u64>,
}

impl ClientOptions {
    /// The word under `type`, which is also the backend's.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match self {
            Self::UnixLocal { .. } => "unix_local",
            Self::Docker { .. } => "docker",
            Self::Local { .. } => "local",
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
        let explicit = given.get("type").filter(|tag| !tag.is_null());
        if explicit.is_some_and(|tag| tag != backend) {
            let tag = explicit.map(python::text).unwrap_or_default();
            return Err(raise::value_error(format!(
                "sandbox.options type `{tag}` does not match selected sandbox client backend \
                 `{backend}`"
            )));
        }
        let known = KEYS.iter().find(|(tag, _)| *tag == backend).map(|(_, keys)| *keys);
        let is_unknown =
            |key: &&str| *key != "type" && known.is_some_and(|known| !known.contains(key));
        let mut unknown: Vec<&str> = given.keys().map(String::as_str).filter(is_unknown).collect();
        if !unknown.is_empty() {
            unknown.sort_unstable();
            let unknown = unknown.join(", ");
            return Err(raise::type_error(format!("Unknown sandbox.options settings: {unknown}")));
        }
        let mut options = given.clone();
        options.entry("type").or_insert_with(|| backend.into());
        let read = |input: Input<'_>| registry.client_options().read(input, backend, "options");
        Context::with(registry).check(&Value::Object(options), read).map_err(Invalid::into_error)
    }
}

const UNIX_LOCAL_KEYS: &[&str] = &["exposed_ports"];
const DOCKER_KEYS: &[&str] = &["image", "exposed_ports", "network_mode", "labels"];

const LOCAL_KEYS: &[&str] = &[
    "exposed_ports",
    "isolation",
    "network",
    "policy",
    "nested_sandbox",
    "memory",
    "pids",
    "cpu_millis",
    "disk",
];

/// The keys of each backend's options, beside `type`.
const KEYS: [(&str, &[&str]); 3] =
    [("unix_local", UNIX_LOCAL_KEYS), ("docker", DOCKER_KEYS), ("local", LOCAL_KEYS)];

/// The ways a session on this machine can be confined, as users write them.
const ISOLATION: [(&str, Isolation); 4] = [
    ("auto", Isolation::Auto),
    ("namespaces", Isolation::Exactly(Rung::Namespaces)),
    ("landlock", Isolation::Exactly(Rung::Landlock)),
    ("unconfined", Isolation::Exactly(Rung::Unconfined)),
];

/// The networks a session on this machine can have, as users write them.
const NETWORKS: [(&str, NetworkAccess); 3] = [
    ("none", NetworkAccess::None),
    ("host", NetworkAccess::Host),
    ("policy", NetworkAccess::Policy),
];

/// The options of the backends that come with Bastide.
pub(crate) const BUILTIN: [Builtin<ClientOptions>; 3] = [
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
    ("local", "LocalClientOptions", |input| {
        check_keys(input, "LocalClientOptions", LOCAL_KEYS, &[])?;
        let mut fields = input.fields("LocalClientOptions")?;
        fields.or_with("type", (), |input| input.one_of(&[("local", ())]));
        let exposed_ports = fields.or_with("exposed_ports", Vec::new(), ports);
        let isolation =
            fields.or_with("isolation", Isolation::Auto, |input| input.one_of(&ISOLATION));
        let network =
            fields.or_with("network", NetworkAccess::None, |input| input.one_of(&NETWORKS));
        let policy = fields.or_with("policy", None, |input| match input.value().is_null() {
            true => Ok(None),
            false => Policy::from_input(input).map(|policy| Some(Box::new(policy))),
        });
        let nested_sandbox = fields.or("nested_sandbox", false);
        let memory = fields.or_with("memory", None, limit);
        let pids = fields.or_with("pids", None, limit);
        let cpu_millis = fields.or_with("cpu_millis", None, limit);
        let disk = fields.or_with("disk", None, limit);
        fields.build(|| {
            let limits =
                LocalLimits { memory: memory?, pids: pids?, cpu_millis: cpu_millis?, disk: disk? };
            Some(ClientOptions::Local {
                exposed_ports: exposed_ports?,
                isolation: isolation?,
                network: network?,
                policy: policy?,
                nested_sandbox: nested_sandbox?,
                limits,
            })
        })
    }),
];

/// A limit, or none. Nothing at all would be no limit but a session that cannot run.
fn limit(input: Input<'_>) -> Checked<Option<u64>> {
    if input.value().is_null() {
        return Ok(None);
    }
    match u64::try_from(input.int()?) {
        Ok(limit) if limit > 0 => Ok(Some(limit)),
        _ => Err(input.field_error("greater_than", "Input should be greater than 0")),
    }
}

/// The word for a choice.
fn tag<T: PartialEq>(of: &T, words: &[(&'static str, T)]) -> String {
    let found = words.iter().find(|(_, choice)| choice == of);
    found.map_or_else(String::new, |(tag, _)| (*tag).to_owned())
}

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
        let tag = map.get("type").unwrap_or(&Value::Null);
        match tag.as_str().filter(|tag| input.registry().client_options().has(tag)) {
            Some(known) => input.registry().client_options().read(input, known, "options"),
            None => {
                let tag = python::text(tag);
                Err(input.value_error(format!("unknown sandbox client options type `{tag}`")))
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
            Self::Local { exposed_ports, isolation, network, policy, nested_sandbox, limits } => {
                out.put("exposed_ports", exposed_ports)?;
                out.put("isolation", &tag(isolation, &ISOLATION))?;
                out.put("network", &tag(network, &NETWORKS))?;
                if let Some(policy) = policy {
                    out.put("policy", &policy.to_value())?;
                }
                out.put("nested_sandbox", nested_sandbox)?;
                out.put("memory", &limits.memory.map(i128::from))?;
                out.put("pids", &limits.pids.map(i128::from))?;
                out.put("cpu_millis", &limits.cpu_millis.map(i128::from))?;
                out.put("disk", &limits.disk.map(i128::from))?;
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
    fn options_of_confined_sessions_survive_a_round_trip() {
        let read = |options: Value| crate::lax::read::<ClientOptions>(&options);
        let whole = json!({"type": "local", "exposed_ports": [80], "isolation": "landlock",
            "network": "host", "nested_sandbox": true, "memory": 1024, "pids": null,
            "cpu_millis": 500, "disk": null});
        let options = read(whole.clone()).unwrap();
        assert_eq!(options.dump().unwrap(), whole);
        let rules = json!({"rules": [{"allow": "example.org"}]});
        let policy = json!({"type": "local", "network": "policy", "policy": rules});
        let dumped = read(policy).unwrap().dump().unwrap();
        assert_eq!(read(dumped.clone()).unwrap().dump().unwrap(), dumped);
        assert_eq!(dumped["policy"]["rules"][0]["allow"], json!(["example.org"]));
        assert_eq!(read(json!({"type": "local"})).unwrap().dump().unwrap()["isolation"], "auto");
        for bad in [
            json!({"type": "local", "isolation": "container"}),
            json!({"type": "local", "network": "bridge"}),
            json!({"type": "local", "memory": 0}),
            json!({"type": "local", "network": "policy", "policy": {"rules": [{"allow": "a..b"}]}}),
            json!({"type": "local", "color": "red"}),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }

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
