//! The kernel proper out of the file that boot loaders take. The emulated machine starts the ELF file directly, which
//! saves it from unpacking the kernel under emulation: seconds of each boot.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

/// How kernels are packed: how the packed octets begin, and what unpacks them.
const PACKERS: [(&[u8], &str); 3] = [
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x1f\x8b\x08", "gzip"),
];

/// Where the packed kernel lies in a bzImage: the Linux/x86 boot protocol's `setup_sects` (at 0x1f1), then
/// `payload_offset` and `payload_length` (0x248 and 0x24c), which count from the protected-mode code.
fn payload(image: &[u8]) -> Option<&[u8]> {
    const SECTOR: usize = 512;
    let word = |at: usize| -> Option<usize> {
        let octets = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(octets)).ok()
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    // Zero means four, for historical reasons.
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        n => usize::from(n),
    };
    let start = (sectors + 1)
        .checked_mul(SECTOR)?
        .checked_add(word(0x248)?)?;
    image.get(start..start.checked_add(word(0x24c)?)?)
}

/// The ELF file in `image`.
///
/// # Errors
/// `image` is no kernel, or packed in a way that is not known here, or its unpacker is not installed.
pub fn unpack(image: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let packed = payload(image).ok_or("not a kernel in the x86 boot format")?;
    let (_, tool) = PACKERS
        .iter()
        .find(|(magic, _)| packed.starts_with(magic))
        .ok_or("the kernel is packed in an unknown way")?;
    let mut unpacker = Command::new(tool)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("{tool}: {e}"))?;
    let mut into = unpacker.stdin.take().ok_or("no pipe")?;
    let mut from = unpacker.stdout.take().ok_or("no pipe")?;
    let mut elf = Vec::new();
    std::thread::scope(|scope| {
        // The unpacked length stands behind the packed octets: it is no part of them, and some unpackers complain and
        // close the pipe before they have read it. What counts is what came out.
        scope.spawn(move || drop(into.write_all(packed)));
        from.read_to_end(&mut elf)
    })?;
    let _complaints = unpacker.wait()?;
    if !elf.starts_with(b"\x7fELF") {
        return Err(format!("{tool} gave no ELF file").into());
    }
    Ok(elf)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with one sector of set-up and `payload` 16 octets into the protected-mode code.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024 + 16];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        let len = u32::try_from(payload.len()).unwrap();
        image[0x24c..0x250].copy_from_slice(&len.to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn the_packed_kernel_is_found() {
        assert_eq!(payload(&image(b"packed")).unwrap(), b"packed");
        assert!(payload(&image(b"packed")[..1040]).is_none());
        assert!(payload(b"short").is_none());
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        for (what, said) in [
            (b"nothing".to_vec(), "not a kernel"),
            (image(b"strange octets"), "unknown way"),
            (image(b"\x1f\x8b\x08 not really"), "no ELF"),
        ] {
            let error = unpack(&what).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
