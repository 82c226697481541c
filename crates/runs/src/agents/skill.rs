//! Skills: a page of instructions with a name, in the form agents share.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bastide::{Error, ErrorKind, Result};
use indexmap::IndexMap;

/// The largest page that is read.
const MAX_PAGE: u64 = 1 << 20;

/// A skill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skill {
    /// Its name; its folder has it, too.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The page.
    pub instructions: String,
    /// Its licence.
    pub license: Option<String>,
    /// What it works with.
    pub compatibility: Option<String>,
    /// What else its author says of it.
    pub metadata: IndexMap<String, String>,
    /// Files beside the page, by name.
    pub assets: Vec<(String, Vec<u8>)>,
}

impl Skill {
    /// A skill.
    #[must_use]
    pub fn new(name: &str, description: &str, instructions: &str) -> Self {
        Self {
            name: name.to_owned(),
            description: description.to_owned(),
            instructions: instructions.to_owned(),
            ..Self::default()
        }
    }

    /// Reads a skill from the folder with its `SKILL.md`.
    ///
    /// # Errors
    ///
    /// If there is none, or a file of it cannot be read.
    pub fn from_dir(folder: &Path) -> Result<Self> {
        let failed = |path: &Path, error: io::Error| {
            let message = format!("cannot read the skill file {}: {error}", path.display());
            Error::new(ErrorKind::InvalidInput, message)
        };
        let page = folder.join("SKILL.md");
        let text = read(&page).map_err(|error| failed(&page, error))?;
        let text = String::from_utf8(text)
            .map_err(|error| failed(&page, io::Error::new(io::ErrorKind::InvalidData, error)))?;
        let mut skill = Self::parse(&text);
        if skill.name.is_empty() {
            let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
            skill.name = name.unwrap_or_default();
        }
        let mut paths: Vec<PathBuf> = fs::read_dir(folder)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .map_err(|error| failed(folder, error))?;
        paths.sort();
        for path in paths.into_iter().filter(|path| *path != page && path.is_file()) {
            let content = read(&path).map_err(|error| failed(&path, error))?;
            if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
                skill.assets.push((name.to_owned(), content));
            }
        }
        Ok(skill)
    }

    fn parse(text: &str) -> Self {
        let mut skill = Self::default();
        let front = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---\n"));
        let body = match front {
            Some((front, body)) => {
                skill.read_front(front);
                body
            }
            None => text,
        };
        skill.instructions = body.trim_start().to_owned();
        if skill.description.is_empty() {
            let lines = || body.lines().map(str::trim).filter(|line| !line.is_empty());
            let heading = lines().find_map(|line| line.strip_prefix('#'));
            let first = heading.map(|line| line.trim_start_matches('#').trim());
            skill.description = first.or_else(|| lines().next()).unwrap_or_default().to_owned();
        }
        skill
    }

    /// `key: value`, and one level of indented ones below a key without.
    fn read_front(&mut self, front: &str) {
        let mut around = "";
        for line in front.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let (is_inner, key, value) = (key.starts_with("  "), key.trim(), value.trim());
            if is_inner {
                if around == "metadata" {
                    self.metadata.insert(key.to_owned(), value.to_owned());
                }
                continue;
            }
            around = if value.is_empty() { key } else { "" };
            match key {
                "name" => value.clone_into(&mut self.name),
                "description" => value.clone_into(&mut self.description),
                "license" => self.license = Some(value.to_owned()),
                "compatibility" => self.compatibility = Some(value.to_owned()),
                _ => {}
            }
        }
    }

    /// Refuses a name that cannot be a folder everywhere.
    ///
    /// # Errors
    ///
    /// If it is not of lower-case letters and digits, joined by single dashes.
    pub fn check_name(&self) -> Result<()> {
        let is_part = |part: &str| {
            !part.is_empty()
                && part.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit())
        };
        if self.name.split('-').all(is_part) {
            return Ok(());
        }
        let message = format!("{:?} cannot be the name of a skill", self.name);
        Err(Error::new(ErrorKind::InvalidInput, message)
            .with_hint("use lower-case letters and digits, joined by `-`"))
    }

    /// The page, with what the skill is at its beginning.
    #[must_use]
    pub fn to_skill_md(&self) -> String {
        // A value is one line, whatever it says.
        let line = |key: &str, value: &str| format!("{key}: {}\n", value.replace('\n', " "));
        let mut page = String::from("---\n");
        page.push_str(&line("name", &self.name));
        page.push_str(&line("description", &self.description));
        for (key, value) in [("license", &self.license), ("compatibility", &self.compatibility)] {
            if let Some(value) = value {
                page.push_str(&line(key, value));
            }
        }
        if !self.metadata.is_empty() {
            page.push_str("metadata:\n");
            for (key, value) in &self.metadata {
                page.push_str(&format!("  {}", line(key, value)));
            }
        }
        page + "---\n\n" + self.instructions.trim_start()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    fs::File::open(path)?.take(MAX_PAGE + 1).read_to_end(&mut content)?;
    match content.len() as u64 > MAX_PAGE {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_folder_and_writes_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let page = "---\nname: tidy-up\ndescription: Tidies\nmetadata:\n  author: me\n  level: 2\n---\n\n# Tidy\n\nDo.\n";
        fs::write(folder.path().join("SKILL.md"), page).unwrap();
        fs::write(folder.path().join("extra.txt"), "x").unwrap();
        let skill = Skill::from_dir(folder.path()).unwrap();
        assert_eq!((skill.name.as_str(), skill.description.as_str()), ("tidy-up", "Tidies"));
        assert_eq!(skill.metadata.get("author").map(String::as_str), Some("me"));
        assert_eq!(skill.instructions, "# Tidy\n\nDo.\n");
        assert_eq!(skill.assets, [("extra.txt".to_owned(), b"x".to_vec())]);
        assert_eq!(skill.to_skill_md(), page);
        assert_eq!(skill.instructions, "# Tidy\n\nDo.\n");
        skill.check_name().unwrap();
        for name in ["", "A", "a--b", "-a", "../x", "a_b"] {
            assert!(Skill::new(name, "", "").check_name().is_err(), "{name}");
        }
    }

    #[test]
    fn says_what_it_is_by_its_first_heading() {
        assert_eq!(Skill::parse("\nintro\n## What it does\n").description, "What it does");
        assert_eq!(Skill::parse("just words\n").description, "just words");
    }
}
