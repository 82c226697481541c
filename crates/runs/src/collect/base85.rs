//! Binary data in patches, as git writes it: deflated, in lines of base 85.

use std::io::{self, Read, Write};

/// The digits, in git's order.
const DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// How many bytes one line carries at most.
const LINE: usize = 52;

/// Writes deflated data, in lines that each say their length first.
pub(super) fn write_lines(data: &mut dyn Read, out: &mut dyn Write) -> io::Result<()> {
    let mut line = [0u8; LINE];
    loop {
        let length = fill(data, &mut line)?;
        if length == 0 {
            return Ok(());
        }
        out.write_all(&encode_line(&line, length))?;
    }
}

fn encode_line(line: &[u8; LINE], length: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(68);
    let number = u8::try_from(length).unwrap_or_default();
    text.push(if number <= 26 { b'A' + number - 1 } else { b'a' + number - 27 });
    for group in line.chunks(4).take(length.div_ceil(4)) {
        let mut word = [0u8; 4];
        word.copy_from_slice(group);
        let mut rest = u32::from_be_bytes(word);
        let mut digits = [0u8; 5];
        for digit in digits.iter_mut().rev() {
            *digit = DIGITS[(rest % 85) as usize];
            rest /= 85;
        }
        text.extend_from_slice(&digits);
    }
    text.push(b'\n');
    text
}

/// Reads until the line is full or the data ends; what is behind the end is zero.
fn fill(data: &mut dyn Read, line: &mut [u8; LINE]) -> io::Result<usize> {
    let mut length = 0;
    line.fill(0);
    while let Some(room) = line.get_mut(length..).filter(|room| !room.is_empty()) {
        match data.read(room) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(data: &[u8]) -> String {
        let mut out = Vec::new();
        write_lines(&mut &data[..], &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn says_the_length_of_each_line_first() {
        assert_eq!(lines(b""), "");
        assert_eq!(lines(&[0; 4]), "D00000\n");
        assert_eq!(lines(&[0xff; 4]), "D|NsC0\n");
        // A group that is not full is filled with zeros.
        assert_eq!(lines(&[0]), "A00000\n");
        let two = lines(&[1; 53]);
        let lengths: Vec<_> = two.lines().map(|line| (line.as_bytes()[0], line.len())).collect();
        assert_eq!(lengths, [(b'z', 66), (b'A', 6)]);
    }
}
