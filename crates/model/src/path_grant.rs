//! Access to paths outside the workspace.

use serde_json::Value;

use crate::Result;
use crate::lax::{Checked, Dump, FromInput, Input, Object};
use crate::posix_path::PosixPath;
use crate::windows_path::WindowsPath;

/// Access to one absolute path outside the workspace, and everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathGrant {
    /// The path inside the sandbox: absolute, normalized, not the root.
    pub path: String,
    /// Whether only reading is granted.
    pub read_only: bool,
    /// What it is for, for people.
    pub description: Option<String>,
    /// The path on the host that is behind it, where that is another one.
    pub host_path: Option<String>,
}

impl FromInput for PathGrant {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("SandboxPathGrant")?;
        let path = fields.required_with("path", granted_path);
        let read_only = fields.or("read_only", false);
        let description = fields.or_default("description");
        let host_path = fields.or_with("host_path", None, host_path);
        fields.build(|| {
            Some(Self {
                path: path?,
                read_only: read_only?,
                description: description?,
                host_path: host_path?,
            })
        })
    }
}

impl Dump for PathGrant {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("path", &self.path)?;
        out.put("read_only", &self.read_only)?;
        out.put("description", &self.description)?;
        out.put_some("host_path", &self.host_path)?;
        Ok(out.into())
    }
}

const IS_ROOT: &str = "sandbox path grant path must not be filesystem root";

fn granted_path(input: Input<'_>) -> Checked<String> {
    let Some(text) = input.value().as_str() else {
        return Err(input.value_error("sandbox path grant path must be a string or Path"));
    };
    let path = PosixPath::new(text).normalized();
    if WindowsPath::absolute(text).is_some() || !path.is_absolute() {
        return Err(input.value_error("sandbox path grant path must be POSIX absolute"));
    }
    if path.is_root() {
        return Err(input.value_error(IS_ROOT));
    }
    Ok(path.to_string())
}

fn host_path(input: Input<'_>) -> Checked<Option<String>> {
    const ELSEWHERE: &str = "sandbox path grant host_path does not support UNC or device paths";
    let text = match input.value() {
        Value::Null => return Ok(None),
        Value::String(text) => text,
        _ => {
            let message = "sandbox path grant host_path must be a string or Path";
            return Err(input.value_error(message));
        }
    };
    if text.starts_with("\\\\") || text.starts_with("//") {
        return Err(input.value_error(ELSEWHERE));
    }
    if text.split(['\\', '/']).any(|name| name == "..") {
        let message = "sandbox path grant host_path must not contain parent segments";
        return Err(input.value_error(message));
    }
    let (normalized, is_root) = {
        let windows = WindowsPath::new(text);
        let posix = PosixPath::new(text).normalized();
        if windows.is_absolute() && !windows.has_drive_letter() {
            return Err(input.value_error(ELSEWHERE));
        } else if windows.is_absolute() {
            (windows.to_string(), windows.is_root())
        } else if posix.is_absolute() {
            (posix.to_string(), posix.is_root())
        } else {
            let message = "sandbox path grant host_path must be an absolute host path";
            return Err(input.value_error(message));
        }
    };
    if is_root { Err(input.value_error(IS_ROOT)) } else { Ok(Some(normalized)) }
}
