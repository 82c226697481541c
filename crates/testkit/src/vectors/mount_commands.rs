//! Area `mount_commands`: plans of mounts, carried out by a stand-in that only notes what it is
//! asked for. Whether a step succeeds is up to the rules of the case.

use bastide_model::error::raise;
use bastide_model::mount::{HelperRun, MountPlan, MountSite, MountStep, ToolCheck};
use bastide_model::text::shell_quote;
use bastide_model::{Entry, Manifest, Mount, PosixPath, Result};
use serde_json::{Value, json};

use super::case::malformed;
use super::compare::error_object;
use super::mount_security::acknowledged;
use super::rclone_config::session;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("mount_activate", |case| calls(case, Action::Activate)),
    ("mount_deactivate", |case| calls(case, Action::Deactivate)),
    ("mount_teardown_for_snapshot", |case| calls(case, Action::TearDown)),
    ("mount_restore_after_snapshot", |case| calls(case, Action::Restore)),
    ("mount_outcome", mount_outcome),
];

#[derive(Clone, Copy)]
enum Action {
    Activate,
    Deactivate,
    TearDown,
    Restore,
}

fn calls(case: &Case<'_>, action: Action) -> Result<Value> {
    let mut stand_in = StandIn { case, calls: Vec::new() };
    stand_in.perform(action)?;
    Ok(json!({ "calls": stand_in.calls }))
}

fn mount_outcome(case: &Case<'_>) -> Result<Value> {
    let action = match case.text("action")? {
        "activate" => Action::Activate,
        "deactivate" => Action::Deactivate,
        "teardown" => Action::TearDown,
        "restore" => Action::Restore,
        _ => return Err(malformed("action", "a known word")),
    };
    let mut stand_in = StandIn { case, calls: Vec::new() };
    let result = match stand_in.perform(action) {
        Ok(()) => json!("ok"),
        Err(error) => error_object(&error),
    };
    Ok(json!({ "result": result, "calls": stand_in.calls }))
}

/// Notes what it is asked for.
struct StandIn<'c, 'a> {
    case: &'c Case<'a>,
    calls: Vec<Value>,
}

impl StandIn<'_, '_> {
    fn perform(&mut self, action: Action) -> Result<()> {
        let manifest = acknowledged(self.case, "manifest")?;
        let done = self.perform_in(&manifest, action);
        done.map_err(|error| error.redacted_if(manifest.holds_mount_authority()))
    }

    fn perform_in(&mut self, manifest: &Manifest, action: Action) -> Result<()> {
        let (entry_path, mount) = find(manifest, &self.case.texts("entry")?)?;
        let backend = self.case.optional_text("backend")?.unwrap_or("docker");
        let has_volumes = backend == "docker";
        let site = MountSite { manifest, session_id: session(self.case)?, backend, has_volumes };
        let path = match self.case.optional_text("mount_path")? {
            Some(path) => PosixPath::new(path),
            None => mount.resolve_path(&manifest.root_path(), &entry_path)?,
        };
        let mounting = match action {
            Action::Activate => mount.mounting(site, path)?,
            Action::Restore => mount.remounting(site, path)?,
            Action::Deactivate => return self.carry_out(&mount.unmounting(site, &path)?, manifest),
            Action::TearDown => return self.carry_out(&mount.detaching(site, &path)?, manifest),
        };
        let file = mounting.file_to_read().map(|path| self.read(path)).transpose()?;
        self.carry_out(&mounting.plan(file.as_deref())?, manifest)
    }

    fn read(&self, path: &PosixPath) -> Result<Vec<u8>> {
        let file = self.case.get("files").get(path.as_str()).and_then(Value::as_str);
        let file = file.ok_or_else(|| raise::workspace_read_not_found(path))?;
        Ok(file.as_bytes().to_vec())
    }

    fn carry_out(&mut self, plan: &MountPlan, manifest: &Manifest) -> Result<()> {
        for step in &plan.steps {
            match step {
                MountStep::Require(tool) => {
                    if self.rule(&probe(tool.check)).is_some() {
                        return Err(tool.missing());
                    }
                }
                MountStep::MakeFolder(path) => self.command(&["mkdir", "-p", path.as_str()])?,
                MountStep::WritePrivateFile { path, content } => {
                    self.calls.push(json!({
                        "op": "write", "path": path.as_str(), "content": &**content, "mode": "0600",
                    }));
                    let path = manifest.root_path().join(path);
                    self.command(&["chmod", "0600", path.as_str()])?;
                }
                MountStep::Run(run) => {
                    let mut call = json!({"op": "exec", "argv": run.argv});
                    if !run.env.is_empty() {
                        let env = run.env.iter();
                        let env = env.map(|(name, value)| ((*name).to_owned(), json!(&**value)));
                        call["env"] = Value::Object(env.collect());
                    }
                    if run.attempts > 1 {
                        call["attempts"] = run.attempts.into();
                    }
                    self.calls.push(call);
                    if let Some(rule) = self.rule(&script(run)) {
                        let stderr = rule["stderr"].as_str().unwrap_or_default().to_owned();
                        return Err(run.failed(stderr.as_bytes()));
                    }
                }
                MountStep::Unmount(commands) => {
                    self.calls.push(json!({"op": "exec", "first_of": commands}));
                }
                MountStep::LeaveOutOfSnapshots(_) | MountStep::EndServers { .. } => {}
            }
        }
        Ok(())
    }

    /// Runs a command that nobody looks at unless a rule lets it fail.
    fn command(&self, argv: &[&str]) -> Result<()> {
        let Some(rule) = self.rule(&argv.join(" ")) else { return Ok(()) };
        let text = |key: &str| rule[key].as_str().unwrap_or_default();
        let exit_code = rule["exit_code"].as_i64().unwrap_or(1);
        Err(raise::exec_nonzero(argv, exit_code, text("stdout"), text("stderr")))
    }

    /// The rule that lets this command fail.
    fn rule(&self, command: &str) -> Option<&Value> {
        let rules = self.case.get("exec_rules").as_array()?;
        let matches = |rule: &&Value| rule["match"].as_str().is_some_and(|m| command.contains(m));
        rules.iter().find(matches).filter(|rule| rule["exit_code"].as_i64().unwrap_or(0) != 0)
    }
}

/// The mount at the end of these keys, and where its entry is.
fn find<'m>(manifest: &'m Manifest, keys: &[&str]) -> Result<(PosixPath, &'m Mount)> {
    let unknown = || malformed("entry", "a mount of the manifest");
    let mut path = PosixPath::default();
    let mut found: Option<&Entry> = None;
    for key in keys {
        let entries = match found {
            Some(folder) => folder.children().ok_or_else(unknown)?,
            None => &manifest.entries,
        };
        path = path.join(&PosixPath::typed(key));
        found = Some(entries.get(*key).ok_or_else(unknown)?);
    }
    Ok((path, found.and_then(Entry::as_mount).ok_or_else(unknown)?))
}

/// How the reference asks whether a program is there, for rules to match.
fn probe(check: ToolCheck) -> String {
    match check {
        ToolCheck::Found { program, or_at } => {
            let more: String = or_at.iter().map(|path| format!(" || test -x {path}")).collect();
            format!("sh -lc command -v {program} >/dev/null 2>&1{more}")
        }
        ToolCheck::Succeeds(argv) => {
            let command = format!("{} >/dev/null 2>&1", argv.join(" "));
            format!("sh -lc /usr/local/bin/{command} || {command}")
        }
    }
}

/// How the reference runs a program that mounts, for rules to match.
fn script(run: &HelperRun) -> String {
    let words: Vec<String> = run.argv.iter().map(|word| shell_quote(word)).collect();
    let command = words.join(" ");
    if run.attempts > 1 {
        format!("sh -lc for i in 1 2 3; do timeout 10s {command} && exit 0; sleep 1; done; exit 1")
    } else if run.in_background {
        format!("sh -lc {command} &")
    } else if !run.env.is_empty() {
        format!("sh -lc . env && exec {command} >stdout 2>stderr")
    } else if run.argv.first().is_some_and(|program| program == "mount-s3") {
        format!("sh -lc {command}")
    } else {
        run.argv.join(" ")
    }
}
