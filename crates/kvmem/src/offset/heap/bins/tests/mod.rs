mod bins;
mod splits;
