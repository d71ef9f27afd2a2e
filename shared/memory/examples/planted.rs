//! Faults of memory and threads, planted: what sanitizers must see. `cargo xtask sanitize` runs it before the tests,
//! to show that they can fail; nothing else does.

use kbtp_memory::{PageOptions, Region, WriteVec};
use std::error::Error;
use std::hint::black_box;
use std::process::Command;
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;

const LEN: u64 = 4096;

fn region() -> Result<Region, Box<dyn Error>> {
    Ok(Region::anonymous(LEN, &PageOptions::default())?)
}

/// Copies octets of a region to memory that was freed.
fn use_after_free() -> Result<(), Box<dyn Error>> {
    let region = region()?;
    let mut buffer = vec![0_u8; 64];
    let to = buffer.as_mut_ptr();
    drop(black_box(buffer));
    // SAFETY: none: `to` is freed. That is the fault.
    unsafe { ptr::copy_nonoverlapping(region.as_ptr().cast_const(), to, 64) };
    Ok(())
}

/// Copies more octets out of a buffer than it has.
fn overrun() -> Result<(), Box<dyn Error>> {
    let region = region()?;
    let buffer = black_box(vec![7_u8; 64]);
    // SAFETY: none: `buffer` has 64 octets. That is the fault.
    unsafe { ptr::copy_nonoverlapping(buffer.as_ptr(), region.as_ptr(), 65) };
    Ok(())
}

/// Writes to a region's octets when the last handle on it is gone.
fn unmapped() -> Result<(), Box<dyn Error>> {
    let region = region()?;
    let octets = region.as_ptr();
    drop(region);
    // SAFETY: none: nothing is mapped there any more. That is the fault.
    unsafe { ptr::write_bytes(octets, 1, 1) };
    Ok(())
}

/// Forgets memory that was on a list.
fn leak() -> Result<(), Box<dyn Error>> {
    let octets: &'static [u8] = Box::leak(black_box(vec![1_u8; 100].into_boxed_slice()));
    let mut list = WriteVec::new();
    list.push_slice(octets)?;
    black_box(&list);
    Ok(())
}

/// Two threads write the same octets of a region, with nothing between them.
fn race() -> Result<(), Box<dyn Error>> {
    let region = region()?;
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        for value in [1, 2] {
            let (region, together) = (&region, &together);
            scope.spawn(move || {
                together.wait();
                for _ in 0..1000 {
                    assert!(region.fill(128, 64, value).is_ok());
                }
            });
        }
    });
    Ok(())
}

/// One thread stores a word of a region as an atomic, another one copies over it.
fn race_of_words() -> Result<(), Box<dyn Error>> {
    let region = region()?;
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        let (region, together) = (&region, &together);
        scope.spawn(move || {
            together.wait();
            for value in 0..1000 {
                let stored = region.u32_at(64).map(|word| word.store(value, Relaxed));
                assert!(stored.is_ok());
            }
        });
        scope.spawn(move || {
            together.wait();
            for _ in 0..1000 {
                assert!(region.write(64, &[7; 8]).is_ok());
            }
        });
    });
    Ok(())
}

/// Does it in a child, and does not look how that ended.
fn in_child(fault: &str) -> Result<(), Box<dyn Error>> {
    let _ended = Command::new(std::env::current_exe()?).arg(fault).output()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let fault = std::env::args().nth(1).unwrap_or_default();
    match fault.as_str() {
        "use-after-free" => use_after_free(),
        "overrun" => overrun(),
        "unmapped" => unmapped(),
        "leak" => leak(),
        "race" => race(),
        "race-of-words" => race_of_words(),
        "use-after-free-in-child" => in_child("use-after-free"),
        "race-in-child" => in_child("race"),
        other => Err(format!("no fault is called {other:?}").into()),
    }
}
