module github.com/batonkv/baton/.ci/tools

go 1.26.0
