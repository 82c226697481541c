//! Users and groups that a manifest asks for.

use std::hash::{Hash, Hasher};

use serde_json::Value;

use crate::Result;
use crate::lax::{Checked, Choice, Dump, FromInput, Input, Object};

/// A user of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct User {
    /// The login name; its syntax is left to the system that makes the user.
    pub name: String,
}

impl User {
    /// A user of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

impl FromInput for User {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("User")?;
        let name = fields.required("name");
        fields.build(|| Some(Self { name: name? }))
    }
}

impl Dump for User {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("name", &self.name)?;
        Ok(out.into())
    }
}

/// A group of the sandbox. Two groups of one name are equal, whoever is in them.
#[derive(Debug, Clone)]
pub struct Group {
    /// The group's name.
    pub name: String,
    /// Who is in it.
    pub users: Vec<User>,
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl FromInput for Group {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Group")?;
        let name = fields.required("name");
        let users = fields.required("users");
        fields.build(|| Some(Self { name: name?, users: users? }))
    }
}

impl Dump for Group {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("name", &self.name)?;
        out.put("users", &self.users)?;
        Ok(out.into())
    }
}

/// Whom an entry belongs to beside its owner: a group, or the private group of a user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EntryGroup {
    /// A group of the manifest.
    Group(Group),
    /// A user, whose private group has the same name.
    User(User),
}

impl EntryGroup {
    /// The name of the group in the sandbox.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Group(group) => &group.name,
            Self::User(user) => &user.name,
        }
    }
}

impl FromInput for EntryGroup {
    /// What reads as a group is one; a group has more fields, so what is less than one is a user.
    fn from_input(input: Input<'_>) -> Checked<Self> {
        const CHOICES: &[Choice<EntryGroup>] = &[
            ("Group", |input| Group::from_input(input).map(EntryGroup::Group)),
            ("User", |input| User::from_input(input).map(EntryGroup::User)),
        ];
        // A person who names users means a group, and is told what is wrong with it.
        match (input.is_from_person(), input.value().get("users")) {
            (true, Some(_)) => Group::from_input(input).map(Self::Group),
            (true, None) => User::from_input(input).map(Self::User),
            (false, _) => input.first_of(CHOICES),
        }
    }
}

impl Dump for EntryGroup {
    fn dump(&self) -> Result<Value> {
        match self {
            Self::Group(group) => group.dump(),
            Self::User(user) => user.dump(),
        }
    }
}
