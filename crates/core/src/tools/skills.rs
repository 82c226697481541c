//! Skills: folders with a `SKILL.md` that a model is told about, laid out with the workspace or
//! brought in when they are asked for.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bastide_model::{Entry, EntryKind, Manifest, PosixPath};
use serde_json::{Value, json};

use crate::compat::raise;
use crate::{Error, ErrorKind, Result, Session};

/// Where skills are in a workspace unless said otherwise.
const DEFAULT_PATH: &str = ".agents";

/// What a skill is called that says nothing about itself.
const NO_DESCRIPTION: &str = "No description provided.";

/// The longest `SKILL.md` that is read for its front matter.
const MAX_FRONT_MATTER: u64 = 256 << 10;

/// A skill that a program defines.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    /// Its name, which is also that of its folder.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The content of `SKILL.md`.
    pub content: String,
    /// Files in `scripts`, `references` and `assets`, by their paths there.
    pub files: BTreeMap<String, Entry>,
}

impl Skill {
    /// A skill that has only its text.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        content: impl Into<String>,
    ) -> Self {
        let (name, description, content) = (name.into(), description.into(), content.into());
        Self { name, description, content, files: BTreeMap::new() }
    }
}

/// Where skills come from.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SkillSource {
    /// From the program.
    Inline(Vec<Skill>),
    /// From an entry that is a folder of skills.
    Folder(Box<Entry>),
    /// From a folder of the host; each skill is copied when a model first uses it.
    Lazy(PathBuf),
}

/// The skills of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Skills {
    source: SkillSource,
    path: PosixPath,
}

/// What a model is told about a skill.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct SkillInfo {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The path of its folder, relative to the root of the workspace.
    pub path: String,
}

impl Skills {
    /// Skills from a source, in the folder `.agents`.
    ///
    /// # Errors
    ///
    /// `SkillsConfigError` for a duplicate name, for a name that is not a relative path, and for an
    /// entry that is not a folder.
    pub fn new(source: SkillSource) -> Result<Self> {
        match &source {
            SkillSource::Inline(skills) => {
                let mut names = std::collections::BTreeSet::new();
                for skill in skills {
                    relative(&skill.name)?;
                    if !names.insert(&skill.name) {
                        let message = format!("duplicate skill name: {}", skill.name);
                        return Err(
                            raise::skills_config(message).with_context("name", skill.name.as_str())
                        );
                    }
                }
            }
            SkillSource::Folder(entry) => {
                if !matches!(
                    entry.kind,
                    EntryKind::Dir { .. } | EntryKind::LocalDir { .. } | EntryKind::GitRepo(_)
                ) {
                    return Err(raise::skills_config("`from_` must be a directory-like entry"));
                }
            }
            SkillSource::Lazy(_) => {}
        }
        Ok(Self { source, path: PosixPath::new(DEFAULT_PATH) })
    }

    /// Sets the folder of the workspace that the skills are in.
    ///
    /// # Errors
    ///
    /// `SkillsConfigError` for a path that is empty, absolute or leads out.
    pub fn at(mut self, path: &str) -> Result<Self> {
        self.path = relative(path)?;
        Ok(self)
    }

    /// Adds the skills that are laid out with the workspace to its manifest.
    ///
    /// # Errors
    ///
    /// `SkillsConfigError` if the manifest has something else there.
    pub fn process_manifest(&self, manifest: &mut Manifest) -> Result<()> {
        let mut taken = Vec::new();
        for step in manifest.walk()? {
            let (path, entry) = step?;
            taken.push((path, entry.clone()));
        }
        let clash = |path: &PosixPath| {
            let message = format!("something else is at {path} already");
            Err(raise::skills_config(message).with_context("path", path.as_str()))
        };
        let mut add =
            |path: PosixPath, entry: Entry| match taken.iter().find(|(other, _)| *other == path) {
                Some((_, other)) if *other == entry => Ok(()),
                Some(_) => clash(&path),
                None => {
                    manifest.entries.insert(path.to_string(), entry);
                    Ok(())
                }
            };
        match &self.source {
            SkillSource::Inline(skills) => {
                for skill in skills {
                    let place = self.path.join(&relative(&skill.name)?);
                    add(place, folder_of(skill))?;
                }
                Ok(())
            }
            SkillSource::Folder(entry) => add(self.path.clone(), (**entry).clone()),
            SkillSource::Lazy(_) => {
                match taken.iter().find(|(path, _)| path.overlaps(&self.path)) {
                    Some((path, _)) => clash(path),
                    None => Ok(()),
                }
            }
        }
    }

    /// The skills by name, each once.
    ///
    /// # Errors
    ///
    /// Fails if the session's files, or the folder of the host, cannot be read.
    pub async fn list(&self, session: &Session) -> Result<Vec<SkillInfo>> {
        let mut found = match &self.source {
            SkillSource::Inline(skills) => {
                let info = |skill: &Skill| SkillInfo {
                    name: skill.name.clone(),
                    description: skill.description.clone(),
                    path: self.path.join(&PosixPath::new(&skill.name)).to_string(),
                };
                skills.iter().map(info).collect()
            }
            SkillSource::Folder(_) => self.in_session(session).await?,
            SkillSource::Lazy(folder) => {
                on_host(folder, &self.path)?.into_iter().map(|(info, _)| info).collect()
            }
        };
        found.sort();
        found.dedup();
        Ok(found)
    }

    async fn in_session(&self, session: &Session) -> Result<Vec<SkillInfo>> {
        let mut found = Vec::new();
        for folder in session.files().ls(self.path.as_str()).await? {
            let name = folder.path.rsplit('/').next().unwrap_or_default().to_owned();
            let path = self.path.join(&PosixPath::new(&name));
            let text =
                session.files().read_bounded(&format!("{path}/SKILL.md"), MAX_FRONT_MATTER).await;
            if let (true, Ok(text)) = (folder.is_dir(), text) {
                found.push(info(&String::from_utf8_lossy(&text), &name, &path));
            }
        }
        Ok(found)
    }

    /// The lines that tell a model about the skills; `None` if there are none.
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list).
    pub async fn instructions(&self, session: &Session) -> Result<Option<String>> {
        let skills = self.list(session).await?;
        if skills.is_empty() {
            return Ok(None);
        }
        let mut text =
            "Skills are folders with instructions for a kind of work. Before you start on \
                        something a skill is for, read its `SKILL.md`.\n"
                .to_owned();
        if let SkillSource::Lazy(_) = self.source {
            text.push_str("They are not in the workspace yet: call `load_skill` first.\n");
        }
        for skill in skills {
            let SkillInfo { name, description, path } = skill;
            text.push_str(&format!("- {name}: {description} (file: {path}/SKILL.md)\n"));
        }
        Ok(Some(text))
    }

    /// Copies a skill of the host into the workspace, unless it is there. Returns the answer of the
    /// tool `load_skill`.
    ///
    /// # Errors
    ///
    /// `SkillsConfigError` if there is no such skill, or more than one, or their folder is gone.
    pub async fn load_skill(&self, session: &Session, name: &str) -> Result<Value> {
        let SkillSource::Lazy(folder) = &self.source else {
            return Err(
                raise::skills_config("lazy skill not found").with_context("skill_name", name)
            );
        };
        let found = on_host(folder, &self.path)?;
        let is_it =
            |info: &SkillInfo| info.name == name || info.path.rsplit('/').next() == Some(name);
        let mut found = found.into_iter().filter(|(info, _)| is_it(info));
        let (info, host) = match (found.next(), found.next()) {
            (Some(found), None) => found,
            (Some(_), Some(_)) => {
                let message = "lazy skill name is ambiguous";
                return Err(raise::skills_config(message).with_context("skill_name", name));
            }
            (None, _) => {
                return Err(
                    raise::skills_config("lazy skill not found").with_context("skill_name", name)
                );
            }
        };
        let answer =
            |status: &str| json!({"status": status, "skill_name": info.name, "path": info.path});
        if session.files().stat(&format!("{}/SKILL.md", info.path)).await.is_ok() {
            return Ok(answer("already_loaded"));
        }
        let parent = host.parent().unwrap_or(&host).to_owned();
        let src = host.file_name().unwrap_or_default().to_string_lossy().into_owned();
        crate::workspace::copy_dir(
            session,
            &parent,
            &PosixPath::new(&src),
            &PosixPath::new(&info.path),
        )
        .await?;
        Ok(answer("loaded"))
    }
}

/// The folder of a skill as an entry.
fn folder_of(skill: &Skill) -> Entry {
    let mut children = vec![("SKILL.md".to_owned(), Entry::file(skill.content.clone()))];
    children.extend(skill.files.iter().map(|(path, entry)| (path.clone(), entry.clone())));
    Entry::dir(children).described(skill.description.clone())
}

fn relative(path: &str) -> Result<PosixPath> {
    let refused = |reason: &str| {
        let message = format!("skills path must be a relative path inside the workspace: {path}");
        Err(raise::skills_config(message).with_context("path", path).with_context("reason", reason))
    };
    let parsed = PosixPath::new(path);
    if parsed.is_absolute() {
        return refused("absolute");
    }
    if parsed.climbs() {
        return refused("escape_root");
    }
    match parsed.is_empty() {
        true => refused("empty"),
        false => Ok(parsed),
    }
}

/// The skills in a folder of the host: real folders with a real `SKILL.md`, no links.
fn on_host(folder: &Path, path: &PosixPath) -> Result<Vec<(SkillInfo, PathBuf)>> {
    let gone = |error: std::io::Error| {
        raise::skills_config("lazy skill source directory is unavailable")
            .with_context("src", folder.display().to_string())
            .with_source(error)
    };
    let folder = fs::canonicalize(folder).map_err(gone)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(gone)? {
        let entry = entry.map_err(gone)?;
        let text = entry.path().join("SKILL.md");
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let is_file = fs::symlink_metadata(&text).is_ok_and(|found| found.is_file());
        if !is_dir || !is_file {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let too_long = fs::metadata(&text).map_err(gone)?.len() > MAX_FRONT_MATTER;
        if too_long {
            let message = format!("{} is too long", text.display());
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let text = fs::read(&text).map_err(gone)?;
        let place = path.join(&PosixPath::new(&name));
        found.push((info(&String::from_utf8_lossy(&text), &name, &place), entry.path()));
    }
    Ok(found)
}

fn info(text: &str, folder: &str, path: &PosixPath) -> SkillInfo {
    let fields = front_matter(text);
    let field = |key: &str, otherwise: &str| {
        let given = fields.get(key).filter(|text| !text.is_empty());
        given.cloned().unwrap_or_else(|| otherwise.to_owned())
    };
    SkillInfo {
        name: field("name", folder),
        description: field("description", NO_DESCRIPTION),
        path: path.to_string(),
    }
}

/// The lines between two `---` at the front: keys and values, one layer of quotes taken away.
fn front_matter(text: &str) -> BTreeMap<String, String> {
    let mut lines = text.lines();
    if lines.next().map(str::trim) != Some("---") {
        return BTreeMap::new();
    }
    let lines = lines.take_while(|line| line.trim() != "---");
    let pairs = lines.filter(|line| !line.trim_start().starts_with('#'));
    let pairs = pairs.filter_map(|line| line.split_once(':'));
    let unquoted = |value: &str| {
        let value = value.trim();
        let inner = ['"', '\''].iter().find_map(|quote| {
            value.strip_prefix(*quote).and_then(|rest| rest.strip_suffix(*quote))
        });
        inner.unwrap_or(value).to_owned()
    };
    pairs.map(|(key, value)| (key.trim().to_owned(), unquoted(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lays_out_and_finds_skills() {
        let skill = Skill::new("pdf", "Reads PDF files", "# PDF\n");
        let skills = Skills::new(SkillSource::Inline(vec![skill.clone()])).unwrap();
        let mut manifest = Manifest::default();
        skills.process_manifest(&mut manifest).unwrap();
        skills.process_manifest(&mut manifest).unwrap();
        assert_eq!(manifest.entries.keys().collect::<Vec<_>>(), [".agents/pdf"]);
        manifest.entries.insert(".agents/pdf".to_owned(), Entry::file("x"));
        let clash = skills.process_manifest(&mut manifest).unwrap_err();
        assert_eq!(clash.class(), Some(crate::ErrorClass::SkillsConfigError));
        let twice = Skills::new(SkillSource::Inline(vec![skill.clone(), skill])).unwrap_err();
        assert_eq!(twice.message(), "duplicate skill name: pdf");
        assert!(Skills::new(SkillSource::Folder(Box::new(Entry::file("x")))).is_err());
        for (path, reason) in [("/a", "absolute"), ("../a", "escape_root"), ("", "empty")] {
            let refused = skills.clone().at(path).unwrap_err();
            assert_eq!(refused.context()["reason"], reason, "{path:?}");
        }
    }

    #[test]
    fn reads_the_front_of_a_skill() {
        let text =
            "---\nname: 'my skill'\n# no\ndescription: \"does: things\"\nodd line\n---\nname: x\n";
        let path = PosixPath::new(".agents/s");
        let found = info(text, "s", &path);
        assert_eq!((found.name.as_str(), found.description.as_str()), ("my skill", "does: things"));
        let bare = info("# no front\n", "s", &path);
        assert_eq!((bare.name.as_str(), bare.description.as_str()), ("s", NO_DESCRIPTION));
    }

    #[test]
    fn finds_only_real_folders_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/SKILL.md"), "---\nname: A\n---\n").unwrap();
        fs::create_dir(folder.path().join("empty")).unwrap();
        std::os::unix::fs::symlink("a", folder.path().join("link")).unwrap();
        let found = on_host(folder.path(), &PosixPath::new(".agents")).unwrap();
        let names: Vec<_> = found.iter().map(|(info, _)| info.name.as_str()).collect();
        assert_eq!(names, ["A"]);
        let gone = on_host(&folder.path().join("none"), &PosixPath::new(".agents")).unwrap_err();
        assert_eq!(gone.class(), Some(crate::ErrorClass::SkillsConfigError));
    }
}
