//! Where a port of a sandbox can be reached.

use serde_json::Value;

use crate::Result;
use crate::error::raise;

/// The address at which a port of a sandbox answers.
///
/// ```
/// use bastide_model::ExposedPort;
///
/// let port = ExposedPort { host: "::1".into(), port: 443, tls: true, query: "t=1".into() };
/// assert_eq!(port.url_for("ws")?, "wss://[::1]/?t=1");
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExposedPort {
    /// A host name or an IP address.
    pub host: String,
    /// The port to connect to, which need not be the one inside.
    pub port: i128,
    /// Whether the endpoint speaks TLS.
    pub tls: bool,
    /// The query string of every URL, such as an access token; may be empty.
    pub query: String,
}

impl ExposedPort {
    /// The URL for the scheme `http` or `ws`, in upper or lower case; whether it is TLS depends on
    /// the endpoint.
    ///
    /// # Errors
    ///
    /// `ValueError` for any other scheme.
    pub fn url_for(&self, scheme: &str) -> Result<String> {
        let scheme = match (scheme.to_lowercase().as_str(), self.tls) {
            ("http", false) => "http",
            ("http", true) => "https",
            ("ws", false) => "ws",
            ("ws", true) => "wss",
            _ => return Err(raise::value_error("scheme must be either 'http' or 'ws'")),
        };
        let host = match self.host.as_str() {
            bare if bare.contains(':') && !bare.starts_with('[') => format!("[{bare}]"),
            host => host.to_owned(),
        };
        let usual = if self.tls { 443 } else { 80 };
        let port = if self.port == usual { String::new() } else { format!(":{}", self.port) };
        let query = match self.query.strip_prefix('?').unwrap_or(&self.query) {
            "" => String::new(),
            query => format!("?{query}"),
        };
        Ok(format!("{scheme}://{host}{port}/{query}"))
    }

    /// Where Docker publishes `port`, from the output of `docker inspect`.
    ///
    /// # Errors
    ///
    /// `ExposedPortUnavailableError` if the session was not created with that port, or Docker does
    /// not say where it is.
    pub fn published_by_docker(
        port: i64,
        exposed_ports: &[i64],
        container: &Value,
    ) -> Result<Self> {
        let ports = exposed_ports.iter().copied();
        if !exposed_ports.contains(&port) {
            return Err(raise::exposed_port_unavailable(port, ports, "not_configured", None));
        }
        let port_key = format!("{port}/tcp");
        let unavailable = |detail: &str| {
            raise::exposed_port_unavailable(port, ports.clone(), "backend_unavailable", None)
                .with_context("backend", "docker")
                .with_context("detail", detail)
                .with_context("port_key", port_key.as_str())
        };
        let bindings = container["NetworkSettings"]["Ports"][&port_key].as_array();
        let binding = bindings.and_then(|bindings| bindings.first());
        let binding = binding.ok_or_else(|| unavailable("port_not_published"))?;
        let binding = binding.as_object().ok_or_else(|| unavailable("invalid_port_binding"))?;
        let text = |key: &str| binding.get(key).and_then(Value::as_str).unwrap_or_default();
        let host = match text("HostIp") {
            "" => "127.0.0.1",
            host => host,
        };
        let digits = text("HostPort");
        let host_port = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
        Ok(Self {
            host: host.to_owned(),
            port: host_port.ok_or_else(|| unavailable("invalid_host_port"))?,
            tls: false,
            query: String::new(),
        })
    }
}
