# Makes an authority, a certificate of it for `packages.test`, and an empty repository, here.
set -e
umask 022
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout ca.key -out ca.pem \
    -subj '/CN=Authority of a trial' -addext keyUsage=critical,keyCertSign 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out leaf.csr \
    -subj /CN=packages.test 2>/dev/null
printf 'subjectAltName=DNS:packages.test,DNS:localhost\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' > leaf.ext
openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile leaf.ext -out leaf.pem 2>/dev/null
cat leaf.pem ca.pem > cert.pem
mkdir served
git init -q --bare -b main served/repo.git
git init -q -b main work
git -C work -c user.name=a -c user.email=a@b commit -q --allow-empty -m first
git -C work push -q ../served/repo.git main
