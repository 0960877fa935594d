//! The command line.

/// Returns true if loaders add the word: GRUB, pxelinux and iPXE name the files that they load.
fn is_of_loader(word: &[u8]) -> bool {
    word.starts_with(b"BOOT_IMAGE=") || word.starts_with(b"initrd=")
}

/// Copies a command line without the words that loaders add, and returns the length of the copy. Those are
/// `BOOT_IMAGE=` and `initrd=`, and a first word without `=`: the name of the program itself, as EFI's shell
/// passes it. The line ends at a zero; the copy is cut at the length of `into`.
pub fn without_words_of_loaders(line: &[u8], into: &mut [u8]) -> usize {
    let end = line.iter().position(|byte| *byte == 0).unwrap_or(line.len());
    let words = line.get(..end).unwrap_or_default().split(u8::is_ascii_whitespace);
    let mut len = 0;
    for (index, word) in words.filter(|word| !word.is_empty()).enumerate() {
        // `contains` would be ten times as long.
        let is_name = index == 0 && word.iter().all(|byte| *byte != b'=');
        if is_name || is_of_loader(word) {
            continue;
        }
        let blank: &[u8] = if len > 0 { b" " } else { b"" };
        for (place, byte) in into.iter_mut().skip(len).zip(blank.iter().chain(word)) {
            *place = *byte;
            len += 1;
        }
    }
    len
}

/// Returns the value of the first word `key=value` that a loader has added, up to the length of the line.
#[must_use]
pub fn value_of_loader<'a>(line: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let end = line.iter().position(|byte| *byte == 0).unwrap_or(line.len());
    let mut words = line.get(..end)?.split(u8::is_ascii_whitespace);
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix(b"="))
}
