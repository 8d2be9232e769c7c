//! The contenders.

use anyhow::{Context, Result, ensure};
use kvmem::tier::DataType;
use kvmem_encoding::codec::{Instructions, compress_with, decompress_with};

use super::CodecContenderId;
use crate::bench::suite::Skip;

/// One thread's codec.
pub(super) enum CodecContender {
    Kvmem(Instructions, DataType),
    #[cfg(feature = "compressors")]
    Zstd(zstd_codecs::Zstd),
    #[cfg(feature = "compressors")]
    Lz4,
    #[cfg(feature = "compressors")]
    ZipNn(zstd_codecs::ZipNn),
    Memcpy,
}

/// Returns a contender; the error is a [`Skip`] if this machine or this build lacks it.
pub(super) fn contender(id: CodecContenderId, data_type: DataType) -> Result<CodecContender> {
    let of = |name: &str| {
        let set = Instructions::available().into_iter().find(|set| set.name() == name);
        let set = set.with_context(|| Skip(format!("this processor has no {name}")))?;
        Ok(CodecContender::Kvmem(set, data_type))
    };
    match id {
        CodecContenderId::Kvmem => of(Instructions::detected().name()),
        CodecContenderId::Avx2 => of("avx2"),
        CodecContenderId::Portable => of("portable"),
        CodecContenderId::Memcpy => Ok(CodecContender::Memcpy),
        #[cfg(feature = "compressors")]
        CodecContenderId::Zstd => Ok(CodecContender::Zstd(zstd_codecs::Zstd::new(1)?)),
        #[cfg(feature = "compressors")]
        CodecContenderId::Lz4 => Ok(CodecContender::Lz4),
        #[cfg(feature = "compressors")]
        CodecContenderId::ZipNn => Ok(CodecContender::ZipNn(zstd_codecs::ZipNn::new(data_type)?)),
        #[cfg(not(feature = "compressors"))]
        _ => Err(Skip("build with `--features compressors`".into()).into()),
    }
}

impl CodecContender {
    pub(super) fn compress(&mut self, value: &[u8], into: &mut Vec<u8>) -> Result<()> {
        match self {
            CodecContender::Kvmem(set, data_type) => {
                ensure!(compress_with(*set, value, *data_type, into), "a value does not pay");
            }
            #[cfg(feature = "compressors")]
            CodecContender::Zstd(zstd) => zstd.compress(value, into)?,
            #[cfg(feature = "compressors")]
            CodecContender::Lz4 => {
                into.resize(lz4::block::compress_bound(value.len())?, 0);
                let len = lz4::block::compress_to_buffer(value, None, false, into)?;
                into.truncate(len);
            }
            #[cfg(feature = "compressors")]
            CodecContender::ZipNn(zipnn) => zipnn.compress(value, into)?,
            CodecContender::Memcpy => into.extend_from_slice(value),
        }
        Ok(())
    }

    pub(super) fn decompress(&mut self, stream: &[u8], into: &mut [u8]) -> Result<()> {
        match self {
            CodecContender::Kvmem(set, _) => decompress_with(*set, stream, into)?,
            #[cfg(feature = "compressors")]
            CodecContender::Zstd(zstd) => zstd.decompress(stream, into)?,
            #[cfg(feature = "compressors")]
            CodecContender::Lz4 => {
                let len = Some(i32::try_from(into.len())?);
                lz4::block::decompress_to_buffer(stream, len, into)?;
            }
            #[cfg(feature = "compressors")]
            CodecContender::ZipNn(zipnn) => zipnn.decompress(stream, into)?,
            CodecContender::Memcpy => into.copy_from_slice(stream),
        }
        Ok(())
    }
}

#[cfg(feature = "compressors")]
mod zstd_codecs {
    use anyhow::Result;
    use kvmem::tier::DataType;
    use zstd::bulk::{Compressor, Decompressor};
    use zstd::zstd_safe::{CParameter, ParamSwitch};

    /// zstd with the settings of a level.
    pub(crate) struct Zstd(Compressor<'static>, Decompressor<'static>);

    impl Zstd {
        pub(crate) fn new(level: i32) -> Result<Zstd> {
            Ok(Zstd(Compressor::new(level)?, Decompressor::new()?))
        }

        pub(crate) fn compress(&mut self, value: &[u8], into: &mut Vec<u8>) -> Result<()> {
            into.reserve(zstd::zstd_safe::compress_bound(value.len()));
            self.0.compress_to_buffer(value, into)?;
            Ok(())
        }

        pub(crate) fn decompress(&mut self, stream: &[u8], into: &mut [u8]) -> Result<()> {
            self.1.decompress_to_buffer(stream, into)?;
            Ok(())
        }
    }

    /// A model of ZipNN (Hershcovitch et al. 2024).
    pub(crate) struct ZipNn {
        huffman: Zstd,
        data_type: DataType,
        coded: Vec<u8>,
        plain: Vec<u8>,
        stream: Vec<u8>,
    }

    impl ZipNn {
        pub(crate) fn new(data_type: DataType) -> Result<ZipNn> {
            let mut huffman = Zstd::new(1)?;
            // Steps of 128 KiB between places where a match is looked for: there are none, and all
            // bytes are literals, which the Huffman coder takes.
            huffman.0.set_parameter(CParameter::CompressionLevel(-(128 << 10)))?;
            huffman.0.set_parameter(CParameter::LiteralCompressionMode(ParamSwitch::Enable))?;
            let (coded, plain, stream) = Default::default();
            Ok(ZipNn { huffman, data_type, coded, plain, stream })
        }

        /// Bits by which a number is rotated, to have its exponent in the upper byte.
        fn rotation(&self) -> u32 {
            u32::from(self.data_type == DataType::Bfloat16)
        }

        fn has_planes(&self) -> bool {
            matches!(self.data_type, DataType::Bfloat16 | DataType::Float16)
        }

        pub(crate) fn compress(&mut self, value: &[u8], into: &mut Vec<u8>) -> Result<()> {
            if !self.has_planes() {
                return self.huffman.compress(value, into);
            }
            let rotation = self.rotation();
            self.coded.resize(value.len() / 2, 0);
            into.resize(value.len() / 2, 0);
            let planes = self.coded.iter_mut().zip(&mut *into);
            for (number, (coded, plain)) in value.as_chunks().0.iter().zip(planes) {
                let number = u16::from_le_bytes(*number).rotate_left(rotation);
                (*coded, *plain) = ((number >> 8) as u8, number as u8);
            }
            self.stream.clear();
            self.huffman.compress(&self.coded, &mut self.stream)?;
            into.extend_from_slice(&self.stream);
            Ok(())
        }

        pub(crate) fn decompress(&mut self, stream: &[u8], into: &mut [u8]) -> Result<()> {
            if !self.has_planes() {
                return self.huffman.decompress(stream, into);
            }
            let rotation = self.rotation();
            let (plain, coded) = stream.split_at(into.len() / 2);
            self.plain.resize(into.len() / 2, 0);
            self.huffman.decompress(coded, &mut self.plain)?;
            for (number, (coded, plain)) in
                into.as_chunks_mut().0.iter_mut().zip(self.plain.iter().zip(plain))
            {
                *number = u16::from_le_bytes([*plain, *coded]).rotate_right(rotation).to_le_bytes();
            }
            Ok(())
        }
    }
}
