//! Area `session_ops`: operations of sessions.

use bastide_model::lax::Dump as _;
use bastide_model::{ExposedPort, Result};
use serde_json::{Value, json};

use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] =
    &[("docker_resolve_exposed_port", docker_resolve_exposed_port)];

fn docker_resolve_exposed_port(case: &Case<'_>) -> Result<Value> {
    let exposed: Vec<i64> = case.list("exposed_ports")?.iter().filter_map(Value::as_i64).collect();
    let port = case.integer("port")?;
    let ExposedPort { host, port, tls, query } =
        ExposedPort::published_by_docker(port, &exposed, case.get("attrs"))?;
    Ok(json!({"host": host, "port": port.dump()?, "tls": tls, "query": query}))
}
