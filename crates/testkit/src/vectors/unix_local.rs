//! Operations of the reference's local sessions, through ours.

use bastide::{FileInfo, Session, WriteOptions};
use bastide_model::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use super::case::{encode_base64, malformed};
use super::compare::error_object;
use super::paths::grants;
use super::session::in_session;
use super::tree::{self, Modes};
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("unix_local_op", |case| {
        let result = operate(case)?;
        Ok(json!({"result": result, "tree": left(case)?}))
    }),
    ("unix_local_op_outcome", |case| {
        let result = operate(case);
        let failed = result.is_err();
        let result = result.unwrap_or_else(|error| error_object(&error));
        Ok(json!({"result": result, "failed": failed, "tree": left(case)?}))
    }),
];

fn left(case: &Case<'_>) -> Result<Value> {
    Ok(Value::Array(tree::list(case.scratch.path()?, Modes::Shown)?))
}

fn operate(case: &Case<'_>) -> Result<Value> {
    tree::create(case.scratch.path()?, case.list("tree")?)?;
    let arguments = case.get("args").clone();
    let op = case.text("op")?.to_owned();
    in_session(case, grants(case.list("grants")?)?, async |session| {
        perform(session, &op, &Arguments(&arguments)).await
    })
}

/// The arguments of an operation.
struct Arguments<'a>(&'a Value);

impl Arguments<'_> {
    fn text(&self, key: &str) -> Result<&str> {
        self.0[key].as_str().ok_or_else(|| malformed(key, "text"))
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.0[key].as_bool().unwrap_or(default)
    }

    fn content(&self) -> Result<Vec<u8>> {
        tree::content(self.0)
    }
}

async fn perform(session: &Session, op: &str, arguments: &Arguments<'_>) -> Result<Value> {
    let nothing = |(): ()| Value::Null;
    let bytes = |content: bytes::Bytes| json!({"content_b64": encode_base64(&content)});
    match op {
        "read" => session.files().read(arguments.text("path")?).await.map(bytes),
        "read_bounded" => {
            // A negative number is no better than none.
            let most = arguments.0["max_bytes"].as_u64().unwrap_or(0);
            session.files().read_bounded(arguments.text("path")?, most).await.map(bytes)
        }
        "write" => {
            let content = arguments.content()?;
            session.files().write(arguments.text("path")?, content).await.map(nothing)
        }
        "write_new" => {
            let (path, content) = (arguments.text("path")?, arguments.content()?);
            let options = WriteOptions::default().new_file();
            session.files().write_with(path, content, options).await.map(nothing)
        }
        "ls" => {
            let listed = session.files().ls(arguments.text("path")?).await?;
            // Whom the caller's folder belongs to, as commands see it.
            let own = session.files().stat(".").await?;
            Ok(listed.iter().map(|info| entry(info, &own)).collect())
        }
        "mkdir" => {
            let path = arguments.text("path")?;
            let made = match arguments.flag("parents", false) {
                true => session.files().mkdir_all(path).await,
                false => session.files().mkdir(path).await,
            };
            made.map(nothing)
        }
        "rm" => {
            let path = arguments.text("path")?;
            let removed = match arguments.flag("recursive", false) {
                true => session.files().rm_all(path).await,
                false => session.files().rm(path).await,
            };
            removed.map(nothing)
        }
        "mv" => {
            let (from, to) = (arguments.text("source")?, arguments.text("destination")?);
            session.files().mv(from, to).await.map(nothing)
        }
        "same_file" => {
            let (left, right) = (arguments.text("left")?, arguments.text("right")?);
            let same = match arguments.flag("follow_symlinks", true) {
                true => session.files().same_file(left, right).await,
                false => session.files().same_entry(left, right).await,
            };
            same.map(Value::from)
        }
        _ => Err(Error::new(ErrorKind::Internal, format!("no handler for operation `{op}`"))),
    }
}

/// An entry as the cases show it: owners that made the case by a word, folders without a size.
fn entry(info: &FileInfo, owner: &FileInfo) -> Value {
    let own = |id: u32, own: u32, word: &str| match id == own {
        true => word.to_owned(),
        false => id.to_string(),
    };
    let entry = info.to_entry();
    json!({
        "path": entry.path,
        "permissions_str": entry.permissions.to_string(),
        "owner": own(info.uid, owner.uid, "<uid>"),
        "group": own(info.gid, owner.gid, "<gid>"),
        "size": if info.is_dir() { 0 } else { info.size },
        "kind": entry.kind.as_str(),
    })
}
