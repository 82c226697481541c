//! Area `permissions`: permissions, file modes, and the URLs of exposed ports.

use bastide_model::lax::{self, Dump};
use bastide_model::{ExposedPort, FileMode, Permissions, Result};
use serde_json::{Value, json};

use super::case::malformed;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("permissions_from_str", |case| shown(Permissions::parse(case.text("perms")?)?)),
    ("permissions_from_mode", |case| shown(Permissions::from_mode(number(case, "mode")?))),
    ("permissions_validate", |case| shown(lax::read(case.get("permissions"))?)),
    ("permissions_equal", permissions_equal),
    ("permissions_chain", permissions_chain),
    ("permissions_str_roundtrip", permissions_str_roundtrip),
    ("file_mode_values", file_mode_values),
    ("exposed_port_url", exposed_port_url),
];

fn number(case: &Case<'_>, key: &str) -> Result<i128> {
    lax::read(case.get(key))
}

fn shown(permissions: Permissions) -> Result<Value> {
    let mut out = permissions.dump()?;
    out["mode"] = permissions.mode().dump()?;
    out["str"] = permissions.to_string().into();
    Ok(out)
}

fn permissions_equal(case: &Case<'_>) -> Result<Value> {
    let read = |key| lax::read::<Permissions>(case.get(key));
    Ok((read("a")? == read("b")?).into())
}

fn permissions_chain(case: &Case<'_>) -> Result<Value> {
    let mut permissions = Permissions::default();
    for call in case.list("calls")? {
        let digit = lax::read(&call[1])?;
        permissions = match call[0].as_str() {
            Some("owner_can") => permissions.owner_can(digit),
            Some("group_can") => permissions.group_can(digit),
            Some("others_can") => permissions.others_can(digit),
            _ => return Err(malformed("calls", "known calls")),
        };
    }
    shown(permissions)
}

fn permissions_str_roundtrip(case: &Case<'_>) -> Result<Value> {
    let permissions = Permissions::from_mode(number(case, "mode")?);
    let text = permissions.to_string();
    let roundtrips = Permissions::parse(&text)? == permissions;
    Ok(json!({ "str": text, "roundtrips": roundtrips }))
}

fn file_mode_values(_: &Case<'_>) -> Result<Value> {
    FileMode::NAMED.iter().map(|(name, mode)| Ok((*name, mode.dump()?))).collect()
}

fn exposed_port_url(case: &Case<'_>) -> Result<Value> {
    let port = ExposedPort {
        host: case.text("host")?.to_owned(),
        port: number(case, "port")?,
        tls: case.flag("tls", false)?,
        query: case.optional_text("query")?.unwrap_or_default().to_owned(),
    };
    Ok(port.url_for(case.text("scheme")?)?.into())
}
