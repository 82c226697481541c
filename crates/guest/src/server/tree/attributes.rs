//! Extended attributes, of which only those of users are anybody's business.

use std::os::fd::AsFd;

use bastide_proto::tree::{Attributes, MAX_ATTRIBUTES};
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;
use serde_bytes::ByteBuf;

const PREFIX: &[u8] = b"user.";

/// The attributes of an open file, by name. Nothing where the file system has none; those that are too
/// many to carry are left out.
pub(super) fn read(file: impl AsFd) -> Attributes {
    let mut list = [0_u8; MAX_ATTRIBUTES];
    let length = match flistxattr(&file, &mut list) {
        Ok(0) | Err(_) => return Vec::new(),
        Ok(length) => length.min(list.len()),
    };
    let mut found = Attributes::new();
    let mut room = MAX_ATTRIBUTES;
    let mut value = vec![0_u8; MAX_ATTRIBUTES];
    for name in list[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(PREFIX)) {
        let Ok(length) = fgetxattr(&file, name, value.as_mut_slice()) else { continue };
        let length = length.min(value.len());
        let Some(left) = room.checked_sub(name.len() + length) else { continue };
        room = left;
        found.push((ByteBuf::from(name), ByteBuf::from(&value[..length])));
    }
    found.sort();
    found
}

/// Gives an open file its attributes; says how many could not be set.
pub(super) fn write(file: impl AsFd, attributes: &Attributes) -> u64 {
    let set = |(name, value): &(ByteBuf, ByteBuf)| match name.starts_with(PREFIX) {
        true => fsetxattr(&file, name.as_slice(), value.as_slice(), XattrFlags::empty()),
        false => Err(Errno::PERM),
    };
    let failed = attributes.iter().filter(|attribute| set(attribute).is_err()).count();
    u64::try_from(failed).unwrap_or(u64::MAX)
}
