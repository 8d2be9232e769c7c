//! Forms of encoded values: any bytes are decoded without a key, as a device has them. The result
//! is a value with the checksum of its form, or an error.
#![cfg_attr(fuzzing, no_main)]

use anyhow::{Result, ensure};
use kvmem::tier::DataType;
use kvmem_encoding::{Binding, Codec, DecodeError, Encoding, Envelope, Namespace};

/// The longest value that is decoded.
const MAX_LEN: u64 = 1 << 20;

fn encoding() -> Result<Encoding> {
    Ok(Encoding::new(Codec::Auto, None)?)
}

/// Decodes the bytes, as those of a value that is encrypted and of one that is not.
fn target(bytes: &[u8]) -> Result<()> {
    let Some(envelope) = Envelope::read(bytes) else { return Ok(()) };
    let encoding = encoding()?;
    for namespace in [None, Some(Namespace { id: [1; 16], seed: [2; 16] })] {
        let binding = Binding { digest: [3; 16], namespace };
        let mut value = vec![0; envelope.value_len.min(MAX_LEN) as usize];
        match encoding.decode(&mut bytes.to_vec(), &binding, &mut value) {
            Ok(sum) if envelope.is_compressed => {
                ensure!(sum == crc32c::crc32c(&value), "a wrong value was decoded");
            }
            Ok(_) => ensure!(bytes.ends_with(&value), "a value that is not that of the form"),
            Err(DecodeError::NoKey { .. }) => ensure!(envelope.seal.is_some(), "it needs no key"),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Returns forms of numbers of each type that are compressed.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let numbers = |step: u16| (0..9000_u16).map(move |at| (at.wrapping_mul(step) % 0x180) | 0x3F00);
    let form = |data_type: DataType| {
        let encoding = encoding().ok()?;
        let value: Vec<u8> = numbers(37).flat_map(u16::to_le_bytes).collect();
        let mut stream = Vec::new();
        let prepared = encoding.prepare(&value, data_type, 4096, &mut stream)?;
        let mut form = vec![0; prepared.form_len()];
        let binding = Binding { digest: [3; 16], namespace: None };
        prepared.write(&encoding, &binding, &mut form).ok()?;
        Some((data_type.name().to_owned(), form))
    };
    DataType::ALL.into_iter().filter_map(form).collect()
}

kvmem_fuzz::run!(target, seeds);
