//! The command line.

/// The beginnings of words that loaders add: GRUB, pxelinux and iPXE name the file that they load.
const OF_LOADERS: [&[u8]; 2] = [b"BOOT_IMAGE=", b"initrd="];

/// Copies a command line without the words that loaders add, and returns the length of the copy. Those are
/// `BOOT_IMAGE=` and `initrd=`, and a first word without `=`: the name of the program itself, as EFI's shell
/// passes it. The line ends at a zero; the copy is cut at the length of `into`.
pub fn without_words_of_loaders(line: &[u8], into: &mut [u8]) -> usize {
    let end = line.iter().position(|byte| *byte == 0).unwrap_or(line.len());
    let words = line.get(..end).unwrap_or_default().split(u8::is_ascii_whitespace);
    let mut len = 0;
    for (index, word) in words.filter(|word| !word.is_empty()).enumerate() {
        let is_name = index == 0 && !word.contains(&b'=');
        if is_name || OF_LOADERS.iter().any(|begin| word.starts_with(begin)) {
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
